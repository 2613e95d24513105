"""How far sparse variational dropout compresses the LeNets on MNIST, without privacy (Molchanov et
al., 2017).

    python -m examples.compression lenet-300-100 --seed 0 --all-images
    python -m examples.compression lenet-5 --seed 0
    python -m examples.compression lenet-300-100 --seed 0 --random-labels

A dense network is trained for a short time, made variational, and trained on with the KL term,
whose weight is raised from 0 to 1. Now and then, and at the end, weights with log α of at least 3
are pruned and the units they leave without use removed, so that the remaining epochs cost less.
Compression is weights at first / weights left, without biases.

Of the 60,000 training images 55,000 are trained on; the error on the other 5,000 is shown after
every epoch. With ``--all-images`` nothing is held out. The test images are read once, at the end,
and with ``--tune`` not at all.

With ``--log`` every epoch is written to a file, and a run that was stopped goes on from its last
epoch.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from examples.compression.lenets import NETWORKS, images
from examples.compression.log import Log
from examples.compression.training import results, summary, train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--random-labels", action="store_true", help="replace all labels by random ones"
    )
    parser.add_argument(
        "--tune", action="store_true", help="measure on held-out images, not on the test images"
    )
    parser.add_argument(
        "--all-images", action="store_true", help="hold nothing out of the training images"
    )
    parser.add_argument(
        "--log", type=Path, help="write every epoch here, and go on from here after a stop"
    )
    options = parser.parse_args()
    if options.tune and options.all_images:
        parser.error("--tune needs images that are held out; leave --all-images out")
    make, protocol = NETWORKS[options.network]
    data, held_out, test = images(options.random_labels, options.seed, options.all_images)
    about = {
        name: getattr(options, name)
        for name in ("network", "seed", "random_labels", "tune", "all_images")
    }
    log = Log(options.log, {**about, "protocol": asdict(protocol)})
    run = train(make, protocol, data, held_out, options.seed, log)
    result = results(run, held_out if options.tune and held_out else test)
    log.finish(run, result)
    print(summary(result))


if __name__ == "__main__":
    main()
