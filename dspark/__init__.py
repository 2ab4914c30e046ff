"""Shared kernel of the DSpark serving system: nouns, wire, decoding rule, models, process
harness."""

__version__: str  # of the installed distribution


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata  # takes longer than all else that a command needs

    try:
        return metadata.version("dspark-serving")
    except metadata.PackageNotFoundError:  # a checkout on the path that nobody installed
        return "0+unknown"
