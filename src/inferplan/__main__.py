"""`python -m inferplan`: the command line by the package's name. Knows nothing else."""

from inferplan.cli.app import run

if __name__ == "__main__":
    run()
