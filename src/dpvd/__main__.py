"""``python -m dpvd``, which launchers such as torchrun start."""

from dpvd.cli import main

if __name__ == "__main__":
    main()
