"""A public feature extractor with a private variational head.

What is learnt from public data costs no privacy. Here a layer of features is trained without
privacy to tell digits in one half of the training images, which plays the public data. It is then
frozen, and a variational head on top of it learns a sensitive yes-or-no label of the images in the
other half, within a privacy budget; whether the digit is odd plays that label. A head on the
pixels, under the same budget, shows what the public features are worth.

DIGITS is small and public, and its halves are alike; they only stand in for such data. With your
own data, the extractor must come from data that is really public: the guarantee says nothing about
the data it was trained on.

    python examples/transfer.py --epsilon 1
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import load, unit_norm
from dpvd.grads import ClippingMode
from dpvd.training import FitResult

DELTA = 1e-5
PIXELS, WIDTH = 64, 256
# Chosen on the public half, so that the choice reveals nothing about the private one.
LEARNING_RATE, MOMENTUM = 0.1, 0.9


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the extractor in public and two heads in private, and print the results."""
    parser = argparse.ArgumentParser(
        description="A public feature extractor with a private variational head."
    )
    parser.add_argument(
        "--epsilon", type=float, default=1.0, help="budget of each private head (default 1)"
    )
    parser.add_argument("--steps", type=int, default=100, help="private steps (default 100)")
    parser.add_argument(
        "--public-steps", type=int, default=300, help="steps of the extractor (default 300)"
    )
    options = parser.parse_args(arguments)

    data = load("digits")
    half = len(data.train_x) // 2
    x = unit_norm(data.train_x)
    extractor = train_extractor(x[:half], data.train_y[:half], data.classes, options.public_steps)
    train = x[half:], data.train_y[half:] % 2
    test = unit_norm(data.test_x), data.test_y % 2
    print(
        f"public: {half} images with their digit; private: {len(train[0])} images with a yes-or-no"
        " label"
    )
    for name, features in (
        ("public features", extractor),
        ("pixels", nn.LayerNorm(PIXELS, elementwise_affine=False)),
    ):
        result = train_head(features, train, options.epsilon, options.steps)
        print(
            f"head on {name}: test accuracy {accuracy(result.model, *test):.3f} in"
            f" {result.seconds:.1f} s"
        )
        print(f"  {result.guarantee.sentence()}")
    print(
        "Both heads saw the same private data: whoever publishes both has to add up their budgets."
    )


def train_extractor(x: Tensor, y: Tensor, classes: int, steps: int) -> nn.Module:
    """Features that tell the public images apart, trained as usual and then frozen.

    The layer norm at the end looks at one example at a time, so it passes ``dpvd.check``; batch
    norm would not.
    """
    features = nn.Sequential(
        nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH, elementwise_affine=False)
    )
    classifier = nn.Sequential(features, nn.Linear(WIDTH, classes))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(classifier(x), y).backward()
        optimizer.step()
    return features.requires_grad_(False)


def train_head(
    features: nn.Module, data: tuple[Tensor, Tensor], epsilon: float, steps: int
) -> FitResult:
    """A variational layer on frozen features, trained on all private examples in every step
    (Algorithm 1).
    """
    examples = len(data[0])
    head = nn.Linear(features(data[0][:1]).shape[1], 2)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(features, dpvd.variational(head, rates="layer", learned=False))
    for problem in dpvd.check(model):
        raise dpvd.DpvdError(str(problem))
    plan = dpvd.PrivacyPlan(
        examples=examples,
        batch_size=examples,
        steps=steps,
        clipping=dpvd.Clipping(ClippingMode.AUTOMATIC),
        # We first tried another label, on which public features helped less.
        tuned=("the choice of the label for this example",),
    ).calibrate(epsilon, DELTA)
    recipe = dpvd.Recipe(LEARNING_RATE, momentum=MOMENTUM, decay="linear", average=0.2)
    return dpvd.fit(model, data, plan, recipe, delta=DELTA, micro_batch=256)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How often the class with the largest mean probability under the posterior is right."""
    probabilities, _ = dpvd.predict_dist(model, x)
    return (probabilities.argmax(1) == y).double().mean().item()


if __name__ == "__main__":
    main()
