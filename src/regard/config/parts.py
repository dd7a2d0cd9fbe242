"""Parts from outside the package: masks, mechanisms, models, recipes ... in a user's own Python file.

A file is loaded where it is named: by `--with FILE` or `load_parts`, by `with = ["FILE"]` under `[tool.regard]` in the
nearest pyproject.toml, or by an installed package with an entry point in the group `regard.parts`. Never from the
folder of a run: that holds data, not code.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from regard.config.notation import JsonObject
from regard.errors import UserError

T = TypeVar("T")
GROUP = "regard.parts"
#: Parts that are names of a module, whose kind may not have been imported when the file is loaded.
MODULE_PARTS = ("recipe", "SOURCE")

Part = type | Callable[..., object] | ModuleType


class PartsFile(NamedTuple):
    """A file, or a module of an installed package, whose parts are available."""

    name: str  # the path as given, or the package's name
    sha256: str
    module: ModuleType


class NameTaken(UserError, TypeError):
    """Two parts of one kind have the same name."""


class MissingPart(UserError):
    """A run uses a part from a file that is not loaded."""


_loaded: dict[str, PartsFile] = {}  # by module name
_catalogs: list[tuple[str, Callable[[], Mapping[str, object]]]] = []
_warned: set[str] = set()


def catalog(noun: str, parts: Callable[[], Mapping[str, object]]) -> None:
    """Declare a kind of part, so that those from outside are listed and recorded; `Choice` declares its unions.

    `parts` returns all parts of the kind by name: classes, functions or modules.
    """
    _catalogs.append((noun, parts))


def load_parts(path: str | os.PathLike[str]) -> None:
    """Load a Python file; what it defines becomes available by name. A file is loaded once, unless it has changed."""
    file = Path(path)
    if any((folder / "environment.json").exists() for folder in (file.parent, *file.resolve().parents)):
        raise UserError(f"{path} is in the folder of a run, which holds data and never code; keep it elsewhere")
    if file.suffix != ".py":
        raise UserError(f"--with {path}: this is not a Python file; its name must end in .py")
    try:
        digest = _sha256(file)
    except OSError as error:
        raise UserError(f"--with {path}: the file cannot be read ({error.strerror})") from None
    folder = hashlib.sha256(str(file.resolve().parent).encode()).hexdigest()[:8]
    name = f"_regard_parts_{folder}_{re.sub(r'[^A-Za-z0-9]', '_', file.stem)}"
    if name in _loaded and _loaded[name].sha256 == digest:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look the module up there
    try:
        spec.loader.exec_module(module)
        _loaded[name] = PartsFile(str(path), digest, module)
        parts = listing()[str(path)]  # some kinds refuse a name that is taken when they are listed
    except Exception as error:
        _loaded.pop(name, None)
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path} cannot be loaded{_line(error, name)}: {reason}") from error
    if not parts and not any(part in vars(module) for part in MODULE_PARTS):
        del _loaded[name]
        raise UserError(f"{path} defines no part; docs/extend has an example of each kind, or leave out --with {path}")


def load_declared(given: Sequence[str | os.PathLike[str]] = ()) -> None:
    """Load the parts of installed packages, of the nearest pyproject.toml, and of the files in `given`."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        if point.module not in _loaded:
            module = importlib.import_module(point.module)
            package = point.module if point.dist is None else point.dist.name
            _loaded[point.module] = PartsFile(package, _sha256(Path(module.__file__ or "")), module)
    for path in (*_in_pyproject(), *given):
        load_parts(path)


def _in_pyproject() -> Iterator[Path]:
    folder = next((one for one in (Path(), *Path().resolve().parents) if (one / "pyproject.toml").is_file()), None)
    if folder is None or "[tool.regard]" not in (text := (folder / "pyproject.toml").read_text("utf-8")):
        return
    import tomllib

    try:
        table = tomllib.loads(text).get("tool", {}).get("regard", {})
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{folder / 'pyproject.toml'} is not valid TOML: {error}") from None
    files = table.get("with", [])
    if set(table) > {"with"} or not isinstance(files, list) or not all(isinstance(one, str) for one in files):
        raise UserError(f'{folder / "pyproject.toml"}: [tool.regard] holds a list of files: with = ["my_parts.py"]')
    yield from (folder / file for file in files)


def _line(error: Exception, module: str) -> str:
    """The line of a module at which an error happened: " (line 7)"."""
    step, line = error.__traceback__, error.lineno if isinstance(error, SyntaxError) else None
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") == module:
            line = step.tb_lineno
        step = step.tb_next
    return "" if line is None else f" (line {line})"


def place_of(part: Part) -> str:
    """Where a part is defined, for errors: "my_parts.py" or "regard.attention.mechanism.SoftmaxConfig"."""
    file = _file_of(part)
    name = part.__name__ if isinstance(part, ModuleType) else f"{part.__module__}.{part.__qualname__}"
    return name if file is None else file.name


def outside(part: Part) -> str:
    """A note such as " (my_parts.py)" for a part from outside the package, else an empty text."""
    file = _file_of(part)
    return "" if file is None else f" ({file.name})"


def _file_of(part: object) -> PartsFile | None:
    return _loaded.get(part.__name__ if isinstance(part, ModuleType) else part.__module__)


def check_dataclass(part: type[T]) -> type[T]:
    """The class; one from outside is refused if it has fields, or should, and no @dataclass."""
    inherited = is_dataclass(part) and not vars(part).get("__annotations__")
    if outside(part) and "__dataclass_params__" not in vars(part) and not inherited:
        raise UserError(f"{part.__name__} is not a dataclass; write @dataclass(frozen=True) above its class")
    return part


def defining(attribute: str) -> dict[str, ModuleType]:
    """The loaded modules that define a name such as "recipe", by the file's name without its ending."""
    files = [file for file in _loaded.values() if attribute in vars(file.module)]
    return {Path(file.name).stem if file.name.endswith(".py") else file.name: file.module for file in files}


def listing() -> dict[str, list[str]]:
    """By file, the parts from outside that are available: {"my_parts.py": ["attention sigmoid", ...]}."""
    found: dict[str, list[str]] = {file.name: [] for file in _loaded.values()}
    for noun, parts in _catalogs:
        for name, part in parts().items():
            if (file := _file_of(part)) is not None:
                found[file.name].append(f"{noun} {name}")
    return found


def record() -> list[JsonObject]:
    """The loaded files for a run's record: name, SHA-256 and parts."""
    parts = listing()
    return [{"file": file.name, "sha256": file.sha256, "parts": parts[file.name]} for file in _loaded.values()]


def loaded_files() -> list[str]:
    """The names of the loaded files and packages."""
    return [file.name for file in _loaded.values()]


def with_options() -> str:
    """The options " --with FILE" that a further command with the same parts needs; pyproject.toml names its own."""
    declared = [str(file) for file in _in_pyproject()]
    files = [name for name in loaded_files() if name.endswith(".py") and name not in declared]
    return "".join(f" --with {shlex.quote(name)}" for name in files)


def require(config: JsonObject, recorded: Sequence[JsonObject], run: str) -> None:
    """Refuse a run whose config uses parts that are not loaded; warn where their file has changed since."""
    used = set(_words(config))
    present = {part: name for name, parts in listing().items() for part in parts}
    digests = {file.name: file.sha256 for file in _loaded.values()}
    for entry in recorded:
        needed = [part for part in entry.get("parts", []) if part.split(" ")[-1] in used]
        missing = [part for part in needed if part not in present]
        if missing:
            noun, _, name = missing[0].rpartition(" ")
            fix = f"give --with {entry['file']}" if str(entry["file"]).endswith(".py") else f"install {entry['file']}"
            raise MissingPart(f"{run} uses {noun} {name!r} from {entry['file']}; {fix}")
        changed = [part for part in needed if digests[present[part]] != entry.get("sha256")]
        if changed and run not in _warned:
            _warned.add(run)
            print(
                f"warning: {present[changed[0]]} has changed since {run} was trained with it (SHA-256 differs)",
                file=sys.stderr,
            )


def _words(value: object) -> Iterator[str]:
    """Every word of every text in a config."""
    if isinstance(value, str):
        yield value
        yield from re.findall(r"[\w.+-]+", value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _words(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
