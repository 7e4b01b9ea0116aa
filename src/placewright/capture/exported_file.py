"""What a `.pt2` file says, checked, and rewritten so that loading it runs nothing and reads no weights.

torch.export.load trusts what it reads. Of torch 2.11 and 2.13: weights and constants marked `use_pickle`, opaque
constants, sample inputs and the whole of older files are unpickled without limits; guards are Python code that is
executed; sizes are parsed by evaluating them; names become parts of generated source; specifications of inputs import
modules; the target of a call may be any function below `torch`. So the archive is read here, as zip and JSON, and a
new one is written that holds only what was checked: no pickle of any kind, no guards, no code, no weights, flat inputs
and outputs, and calls of known operators alone. docs/capture.md says the same at more length.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placewright.capture.exported_names import check_expression, check_operator
from placewright.errors import FileError
from placewright.files import MAX_TEXT_BYTES, parse_json

MAX_MEMBERS = 1_000_000
"""Entries of an archive; each weight is one."""
MAX_SIZE = 1 << 60
"""Elements of a tensor."""
_ARCHIVE_VERSION = "0"
_SCHEMA_MAJOR = 8

_NAME = re.compile(r"[A-Za-z_]\w{0,999}", re.ASCII)
_PATH = re.compile(r"[\w.\-]{1,999}")
_KEY = re.compile(r"[\w.\- ]{0,999}")
_SYMBOL = re.compile(r"[A-Za-z_]{1,40}[0-9]{0,6}")
_FLAT: dict[str, Any] = {"type": "builtins.tuple", "context": "null"}
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
STORAGE = "placewright.storage."
"""Before the name of an entry that stands for a whole storage."""
_META = {"type": "meta", "index": None}
_PLAIN = {"is_param": False, "use_pickle": False}
_NAMES = {
    **dict.fromkeys(("name", "as_name"), _NAME),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "user_input_name", "fqn"), _PATH),
}
"""Fields that hold a name, and what it may be."""
_KEYS = {
    **dict.fromkeys(("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"), _NAME),
    "range_constraints": _SYMBOL,
    "as_string_to_argument": _KEY,
}
"""Fields that hold an object whose keys are names."""


@dataclass(frozen=True)
class Exported:
    """A checked program: its JSON document, and the documents that describe its weights and constants."""

    model: dict[str, Any]
    weights: dict[str, Any]
    constants: dict[str, Any]
    loss: int | None
    """The place among the outputs of the one that the program calls `loss`."""


def read_program(path: str | os.PathLike[str]) -> Exported:
    """Return the program in a `.pt2` file, fit to be handed to torch."""
    with _opened(path) as archive:
        members = _members(archive, path)
        name = _program_name(members, path)
        if _text(archive, members, "archive_version", path).strip() != _ARCHIVE_VERSION:
            raise FileError(path, "archive_version", f"is not {_ARCHIVE_VERSION}, the version that is read; {_NEWER}")
        model = _document(archive, members, f"models/{name}.json", path)
        payloads = [
            _document(archive, members, f"data/{kind}/{name}_{kind}_config.json", path)
            for kind in ("weights", "constants")
        ]
    _check_version(model, path)
    loss = _flatten(model, path)
    _Checker(path).check(model)
    weights, constants = (_payload(document, path) for document in payloads)
    return Exported(model, weights, constants, loss)


_NEWER = "it was saved by another version of torch: install that one, or save the program again with this one"
_SAVE = "save a program with torch.export.save(torch.export.export(model, args), 'model.pt2')"


# ---- the archive -------------------------------------------------------------------------------


def _opened(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    """Return the archive, or say what the file is instead."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileError(path, "", "is not a regular file; a .pt2 file is one")
        with open(path, "rb") as file:
            head = file.read(4)
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise FileError(path, "", "no such file") from None
    except zipfile.BadZipFile:
        cut = head == b"PK\x03\x04"
        what = "is cut off: the end of the archive is missing; copy it again" if cut else f"is no .pt2 file; {_SAVE}"
        raise FileError(path, "", what) from None
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise FileError(path, "", f"cannot be read: {error}") from None


def _members(archive: zipfile.ZipFile, path: object) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by their names below the archive's folder."""
    entries = archive.infolist()
    if len(entries) > MAX_MEMBERS:
        raise FileError(path, "", f"has {len(entries)} entries; at most {MAX_MEMBERS} are allowed")
    members: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        name = entry.filename.partition("/")[2] or entry.filename
        if name in members:
            raise FileError(path, name[:200], "is in the archive twice")
        members[name] = entry
    return members


def _program_name(members: Mapping[str, zipfile.ZipInfo], path: object) -> str:
    """Return the name of the program to read: `model`, or the only one."""
    names = [n[len("models/") : -len(".json")] for n in members if n.startswith("models/") and n.endswith(".json")]
    if "model" in names or len(names) == 1:
        return "model" if "model" in names else names[0]
    if names:
        shown = ", ".join(sorted(names)[:8])[:200]
        raise FileError(path, "models", f"holds the programs {shown}; save the one to plan alone, or call it 'model'")
    if "serialized_exported_program.json" in members:
        what = "was saved by torch 2.7 or older, whose files need pickle; save it again with a newer torch"
    elif any(name.startswith("code/") for name in members):
        what = f"is a TorchScript archive, not an exported program; {_SAVE}"
    elif "data.pkl" in members:
        what = f"holds tensors saved by torch.save, and no program; {_SAVE}"
    elif any(name.startswith("data/aotinductor/") for name in members):
        what = f"holds compiled code, and no program; {_SAVE}"
    else:
        what = f"is a zip archive without an exported program; {_SAVE}"
    raise FileError(path, "", what)


def _text(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, path: object) -> str:
    """Return an entry as text, up to the limit on texts."""
    if name not in members:
        raise FileError(path, name, "is missing from the archive; the file is damaged, or is no exported program")
    try:
        with archive.open(members[name]) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise FileError(path, name, f"holds more than {MAX_TEXT_BYTES} bytes, the most that is read")
        return data.decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, UnicodeDecodeError) as error:
        raise FileError(path, name, f"is damaged: {error}; copy the file again") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or compressed in a way that Python lacks
        raise FileError(path, name, f"cannot be read: {error}") from None


def _document(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, path: object
) -> dict[str, Any]:
    """Return the object in an entry of JSON."""
    legacy = name.replace("_weights_config.json", ".pt").replace("_constants_config.json", ".pt")
    if name not in members and legacy in members:
        raise FileError(path, legacy, "is pickled, which is never read; save the program again with a newer torch")
    document = parse_json(_text(archive, members, name, path), f"{path}: {name}")
    if not isinstance(document, dict):
        raise FileError(path, name, "expected a JSON object")
    return document


# ---- the program -------------------------------------------------------------------------------


def _check_version(model: dict[str, Any], path: object) -> None:
    """Refuse a program of another version of the schema."""
    version = model.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != _SCHEMA_MAJOR:
        by = f" of torch {str(model.get('torch_version'))[:40]}" if model.get("torch_version") else ""
        raise FileError(path, "schema_version", f"{major}{by} is not {_SCHEMA_MAJOR}, which is read; {_NEWER}")


def _flatten(model: dict[str, Any], path: object) -> int | None:
    """Make inputs and outputs of a program flat; return the place of the output that is called `loss`.

    What the specification of nested ones may name, a class or a factory, would be imported. Marks and metadata that
    capture has no use for go too, and guards, which are code.
    """
    try:
        module = model["graph_module"]
        signature = module["module_call_graph"][0]["signature"]
        count = sum("user_input" in spec or "constant_input" in spec for spec in module["signature"]["input_specs"])
        made = sum("user_output" in spec or "loss_output" in spec for spec in module["signature"]["output_specs"])
        loss = _place_of_loss(signature["out_spec"], module.get("treespec_namedtuple_fields"))
        empty = {**_FLAT, "children_spec": []}
        given = {**_FLAT, "children_spec": [_LEAF] * count}
        named = {"type": "builtins.dict", "context": "[]", "children_spec": []}
        signature |= {
            "inputs": [], "outputs": [], "forward_arg_names": None,
            "in_spec": json.dumps([1, {**empty, "children_spec": [given, named]}]),
            "out_spec": json.dumps([1, {**_FLAT, "children_spec": [_LEAF] * made}]),
        }  # fmt: skip
        module["module_call_graph"] = [{"fqn": "", "signature": signature}]
        module["metadata"] = {}
    except (KeyError, IndexError, TypeError) as error:
        raise FileError(path, "graph_module", f"is not of the form that torch writes ({error!r}); {_NEWER}") from None
    if "treespec_namedtuple_fields" in module:
        module["treespec_namedtuple_fields"] = {}
    model["guards_code"] = []
    return loss if loss is not None and loss < made else None


def _place_of_loss(spec: object, fields: object) -> int | None:
    """Return the place of the first tensor of the output called `loss`; `fields` are those of named tuples."""
    try:
        root = json.loads(spec)[1]  # type: ignore[arg-type]
        if isinstance(fields, dict) and root["context"] in fields:
            keys = fields[root["context"]]["field_names"]
        else:
            keys = json.loads(root["context"])
        if keys and isinstance(keys[0], list):
            keys = keys[0]  # of a dataclass, whose other fields are None
        before = [_leaves(child) for child in root["children_spec"][: keys.index("loss")]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    return sum(before)


def _leaves(spec: Any) -> int:
    """Return how many outputs a part of them holds."""
    return 1 if spec["type"] is None else sum(map(_leaves, spec["children_spec"]))


class _Checker:
    """Walks the document of a program; whatever torch would make code of must be what it should be."""

    def __init__(self, path: object) -> None:
        self.path = path

    def check(self, model: dict[str, Any]) -> None:
        """Check everything, and put devices and metadata right."""
        todo: list[Any] = [model]
        while todo:
            value = todo.pop()
            if isinstance(value, list):
                todo += value
            elif isinstance(value, dict):
                for key in list(value):
                    self._field(value, key)
                todo += value.values()

    def _field(self, held: dict[str, Any], key: str) -> None:
        """Check one field of an object."""
        value = held[key]
        if key in _NAMES:
            self._matches(_NAMES[key], value, key, empty=key in ("name", "as_name", "fqn"))
        elif key in _KEYS and isinstance(value, dict):
            for name in value:
                self._matches(_KEYS[key], name, key, empty=key == "as_string_to_argument")
        elif key in ("target", "as_operator") and isinstance(value, str):
            check_operator(value, self.path)
        elif key == "expr_str":
            check_expression(value, self.path)
        elif key in ("device", "as_device") and isinstance(value, dict):
            held[key] = {"type": "cpu", "index": None}
        elif key == "metadata" and isinstance(value, dict):
            held[key] = {k: v for k, v in value.items() if k in ("nn_module_stack", "stack_trace")}
        if key in ("as_custom_obj", "custom_obj") or (key == "custom_obj_values" and value):
            raise FileError(self.path, key, "the program holds an object of a class of its own, which is pickled")

    def _matches(self, pattern: re.Pattern[str], value: object, place: str, empty: bool = False) -> None:
        """Refuse a text that is no name of the kind that belongs there."""
        if value is None or (value == "" and empty):
            return
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise FileError(self.path, place, f"{str(value)[:80]!r} is not a name that torch writes there")


# ---- weights and constants ---------------------------------------------------------------------


def _payload(document: dict[str, Any], path: object) -> dict[str, Any]:
    """Return the description of weights or constants with every tensor on the meta device, where it has no bytes.

    Tensors of one storage stay so: the storage itself is described first, as torch takes its size from there.
    """
    entries = document.get("config")
    if not isinstance(entries, dict):
        raise FileError(path, "config", "expected an object with a tensor under each name")
    longest: dict[str, int] = {}
    for name, entry in entries.items():
        if not _PATH.fullmatch(name) or name.startswith(STORAGE):
            raise FileError(path, "config", f"{name[:80]!r} is not a name that torch writes there")
        if not isinstance(entry, dict) or entry.get("use_pickle") is not False:
            raise FileError(path, name, "is pickled, which is never read: it is an object, or a tensor of a class")
        where, extent = _extent(entry, name, path)
        longest[where] = max(longest.get(where, 0), extent)
    kept: dict[str, Any] = {}
    for name, entry in entries.items():
        where, meta = entry["path_name"], {**entry["tensor_meta"], "device": _META}
        size = longest.pop(where, None)
        if size is not None:
            whole = {**meta, "sizes": [{"as_int": size}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
            kept[f"{STORAGE}{where}"] = {**_PLAIN, "path_name": where, "tensor_meta": whole}
        kept[name] = {**_PLAIN, "path_name": where, "is_param": entry.get("is_param") is True, "tensor_meta": meta}
    return {"config": kept}


def _extent(entry: dict[str, Any], name: str, path: object) -> tuple[str, int]:
    """Return the storage of a tensor, and how many elements of it the tensor reaches."""
    where, meta = entry.get("path_name"), entry.get("tensor_meta")
    if not isinstance(where, str) or not re.fullmatch(r"(weight|tensor)_[0-9]{1,9}", where):
        raise FileError(path, name, f"path_name is {str(where)[:80]!r}; weight_N or tensor_N was expected")
    try:
        sizes, strides = ([_whole(value) for value in meta[key]] for key in ("sizes", "strides"))  # type: ignore[index]
        offset = _whole(meta["storage_offset"])  # type: ignore[index]
        if len(sizes) != len(strides):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise FileError(path, name, "has no sizes and strides that are whole numbers") from None
    extent = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 in sizes:
        extent = 0
    if extent > MAX_SIZE:
        raise FileError(path, name, f"reaches {extent} elements; at most {MAX_SIZE} are allowed")
    return where, extent


def _whole(value: Any) -> int:
    """Return the whole number in `{"as_int": 3}`."""
    number = value["as_int"]
    if type(number) is not int or not 0 <= number <= MAX_SIZE:
        raise ValueError
    return number
