"""What an import by a pickle means, and the words for it.

Judges names only, and never calls a file harmless: what is not named here is unusual. Pure.
"""

import re
from collections.abc import Collection, Sequence
from enum import IntEnum

from ckpt.checkpoint import Finding, Severity

CODE = "unsafe-pickle"
HINT = (
    "a hash that fits shows that the bytes are unchanged, not what they do: "
    "load it only if you trust who wrote it"
)
_REFUSED = "weights_only=True refuses it (here it takes trust=True)"


class Risk(IntEnum):
    """How far a name is from what tensors and plain values need.

    ORDINARY is what torch.load allows with weights_only=True, ARRAYS is numpy's rebuilding of
    arrays, UNUSUAL is any other code, POWERFUL can do whatever the user can.
    """

    ORDINARY = 0
    ARRAYS = 1
    UNUSUAL = 2
    POWERFUL = 3


_TENSOR_TYPE = re.compile(r"(?:BFloat16|Bool|Byte|Char|Complex(?:Double|Float)|Double|Float|Half"
                          r"|Int|Long|Short|Q(?:U?Int\d+(?:x\d)?))(?:Storage|Tensor)")  # fmt: skip
_DTYPE = re.compile(r"(?:bfloat16|bool|bits\d+(?:x\d)?|complex\d+|q?u?int\d+(?:x\d)?|float\w*"
                    r"|per_(?:channel|tensor)_\w+)")  # fmt: skip
_ORDINARY: dict[str, frozenset[str]] = {
    "collections": frozenset({"OrderedDict", "Counter"}),
    "_codecs": frozenset({"encode"}),
    "builtins": frozenset({"set", "frozenset", "bytearray", "complex"}),
    "__builtin__": frozenset({"set", "frozenset", "bytearray", "complex"}),
    "torch": frozenset({"Size", "Tensor", "device"}),
    "torch._tensor": frozenset({"_rebuild_from_type_v2"}),
    "torch._utils": frozenset({
        "_rebuild_device_tensor_from_cpu_tensor", "_rebuild_device_tensor_from_numpy",
        "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor", "_rebuild_parameter",
        "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor",
        "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_wrapper_subclass",
    }),
    "torch.nn.parameter": frozenset({"Parameter"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.storage": frozenset({"TypedStorage", "UntypedStorage"}),
}  # fmt: skip
_TENSOR_MODULES = frozenset({"torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse"})

_ARRAYS: dict[str, frozenset[str]] = {
    "numpy": frozenset({"ndarray", "dtype"}),
    "numpy.core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy._core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy.core.numeric": frozenset({"_frombuffer"}),
    "numpy._core.numeric": frozenset({"_frombuffer"}),
}
_ARRAY_DTYPE = re.compile(r"[A-Z]\w*DType")

_POWERFUL_MODULES = frozenset({
    "_io", "_pickle", "_posixsubprocess", "_thread", "asyncio", "atexit", "bdb", "cPickle",
    "cProfile", "cloudpickle", "code", "codeop", "commands", "concurrent", "ctypes", "dill",
    "distutils", "doctest", "ensurepip", "fabric", "fileinput", "ftplib", "functools", "gc",
    "http", "httplib", "idlelib", "imaplib", "imp", "importlib", "inspect", "io", "jsonpickle",
    "linecache", "marshal", "multiprocessing", "nt", "ntpath", "operator", "os", "paramiko",
    "pdb", "pexpect", "pickle", "pip", "pkgutil", "platform", "poplib", "posix", "posixpath",
    "profile", "pty", "py", "pydoc", "requests", "runpy", "setuptools", "sh", "shelve",
    "shutil", "signal", "site", "smtplib", "socket", "socketserver", "ssl", "subprocess",
    "sys", "tempfile", "test", "threading", "timeit", "trace", "turtledemo", "types", "urllib",
    "urllib2", "urllib3", "venv", "webbrowser", "xmlrpc", "zipimport",
})  # fmt: skip
_PLAIN_TYPES = frozenset({
    "bool", "bytes", "dict", "float", "int", "list", "object", "range", "slice", "str", "tuple",
    "xrange", "long", "unicode",
})  # fmt: skip
_POWERFUL_NAMES = frozenset({
    "__import__", "_load_from_bytes", "apply", "compile", "delattr", "eval", "exec", "execfile",
    "getattr", "load", "load_library", "loads", "open", "read_pickle", "reload", "runstring",
    "setattr", "system",
})  # fmt: skip


def risk_of(module: str, name: str) -> Risk:
    """Judge one import. Names with dots reach through attributes, so their parts are judged."""
    if name in _ORDINARY.get(module, ()) or _is_tensor_name(module, name):
        return Risk.ORDINARY
    if name in _ARRAYS.get(module, ()) or _is_array_dtype(module, name):
        return Risk.ARRAYS
    top = module.split(".", maxsplit=1)[0]
    parts = name.split(".")
    if top in _POWERFUL_MODULES or not _POWERFUL_NAMES.isdisjoint(parts):
        return Risk.POWERFUL
    if top in ("builtins", "__builtin__"):
        return Risk.UNUSUAL if name in _PLAIN_TYPES else Risk.POWERFUL
    is_through = len(parts) > 1 and not _POWERFUL_MODULES.isdisjoint(parts)
    has_inner = any(part.startswith("__") and part.endswith("__") for part in parts)
    return Risk.POWERFUL if is_through or has_inner else Risk.UNUSUAL


def findings_of(
    file: str, imports: Collection[tuple[str, str]], untold: Collection[str]
) -> tuple[Finding, ...]:
    """Say what loading a file would import beyond what tensors need; nothing where that is all."""
    judged = {each: risk_of(*each) for each in sorted(imports)}

    def of(risk: Risk) -> list[str]:
        return [f"{module}.{name}" for (module, name), is_ in judged.items() if is_ is risk]

    found: list[Finding] = []

    def warn(what: str) -> None:
        found.append(Finding(CODE, Severity.WARNING, f"{file}: {what}", file, hint=HINT))

    if names := of(Risk.POWERFUL):
        warn(f"loading it runs {_some(names)}, which can do anything that you can")
    if names := of(Risk.UNUSUAL):
        modules = sorted({name.split(".", maxsplit=1)[0] for name in names})
        warn(f"loading it runs code of {_some(modules)}: {_some(names)}; {_REFUSED}")
    if untold:
        warn(f"what loading it runs cannot be told: {_some(sorted(untold))}")
    if (names := of(Risk.ARRAYS)) and not found:
        text = f"{file}: holds numpy arrays ({_some(names)}): {_REFUSED}"
        found.append(Finding(CODE, Severity.NOTE, text, file))
    return tuple(found)


def _is_tensor_name(module: str, name: str) -> bool:
    if module not in _TENSOR_MODULES:
        return False
    if _TENSOR_TYPE.fullmatch(name):
        return True
    return module == "torch" and _DTYPE.fullmatch(name) is not None


def _is_array_dtype(module: str, name: str) -> bool:
    return module == "numpy.dtypes" and _ARRAY_DTYPE.fullmatch(name) is not None


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(text if len(text) <= 80 else f"{text[:79]}…" for text in texts[:3])
    return shown if len(texts) <= 3 else f"{shown} and {len(texts) - 3:,} more"
