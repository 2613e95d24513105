"""``python -m dpvd``, which launchers such as torchrun start."""

from dpvd.cli import main

main()
