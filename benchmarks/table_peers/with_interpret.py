"""DP-EBM of interpret on the columns as they are, with the declared bounds.

python with_interpret.py IN.npz OUT.npy
"""

import sys
import warnings

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier

given = np.load(sys.argv[1])
warnings.simplefilter("ignore")
nominal = given["categories"] > 0
columns = np.where(np.isnan(given["columns"]), given["low"], given["columns"])
table = columns.astype(object)
table[:, nominal] = columns[:, nominal].astype(int).astype(str)
types = ["nominal" if one else "continuous" for one in nominal]
bounds = {place: (given["low"][place], given["high"][place]) for place in np.flatnonzero(~nominal)}
found = []
for train, test in zip(given["train"], given["test"], strict=True):
    model = DPExplainableBoostingClassifier(
        feature_types=types,
        epsilon=float(given["epsilon"]),
        delta=float(given["delta"]),
        privacy_bounds=bounds,
        random_state=None,  # noise that cannot be repeated
        n_jobs=1,
    )
    model.fit(table[train], given["y"][train])
    found.append(model.predict_proba(table[test])[:, 1])
np.save(sys.argv[2], np.array(found))
