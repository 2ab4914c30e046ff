"""Shared kernel of the DSpark serving system: types, wire protocol, decoding rule, models, process
harness."""

__version__: str  # of the installed distribution


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata  # imported here: slower than all else a command needs

    try:
        return metadata.version("dspark-serving")
    except metadata.PackageNotFoundError:  # a checkout that is on the path and not installed
        return "0+unknown"
