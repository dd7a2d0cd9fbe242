"""`regard completion`: a shell script made from the tables of commands, options and config keys."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Literal, NamedTuple

from regard.commands import COMMANDS, find, options_of
from regard.commands.common import CommandOptions
from regard.config import argument
from regard.config import keys as keys_of
from regard.config.command_line import flag_name
from regard.config.keys import table_keys

INSTALL = {
    "bash": "~/.local/share/bash-completion/completions/regard",
    "zsh": "~/.zfunc/_regard",  # a folder of fpath
    "fish": "~/.config/fish/completions/regard.fish",
}


@dataclass(frozen=True)
class CompletionOptions(CommandOptions):
    """Options of `regard completion`."""

    shell: Literal["bash", "zsh", "fish"] = argument("bash", "the shell: bash, zsh or fish", required=True)


class Flag(NamedTuple):
    """An option: its help, and the values that it takes if they are known."""

    help: str
    values: tuple[str, ...] = ()


def completion(options: CompletionOptions) -> int:
    """Print a completion script for bash, zsh or fish.

    Write it to a file once, and again after an update, which may add options.

    bash  mkdir -p ~/.local/share/bash-completion/completions
          regard completion bash > ~/.local/share/bash-completion/completions/regard
    zsh   mkdir -p ~/.zfunc
          regard completion zsh > ~/.zfunc/_regard    (~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit)
    fish  mkdir -p ~/.config/fish/completions
          regard completion fish > ~/.config/fish/completions/regard.fish
    """
    text = fish_script() if options.shell == "fish" else bash_script(zsh=options.shell == "zsh")
    options.show({"shell": options.shell, "file": INSTALL[options.shell], "script": text}, text)
    return 0


def flags(command: str) -> dict[str, Flag]:
    """The options of a command; for `regard train`, also the keys of every recipe."""
    found = {"help": Flag("show the options"), "debug": Flag("show the traceback of an error")}
    for key in table_keys(options := options_of(command), None):
        if "positional" not in options.fields[key.path.partition(".")[0]][0].metadata:
            negated = "no-" * (key.type == "bool" and key.default is True)
            found[negated + flag_name(key.path)] = Flag(key.help, tuple(map(str, key.choices)))
    if command == "train":
        from regard.recipes import get, names

        for key in (key for name in names() for key in keys_of(get(name))):
            values = ("true", "false") if key.type == "bool" else tuple(map(str, key.choices))
            found.setdefault(key.path, Flag(key.help, values))
    return found


def words(command: str) -> list[str]:
    """What a command's positional argument may be, where that is a fixed list."""
    if command in ("train", "recipes", "prove"):
        from regard.recipes import names

        return names()
    if command == "study":
        from regard.studies import names

        return names()
    return ["bash", "zsh", "fish"] if command == "completion" else []


def takes_run(command: str) -> bool:
    """Whether a command takes the name of a run, which the script looks up in the folder `runs`."""
    return command == "prove" or "run" in options_of(command).fields


def bash_script(zsh: bool) -> str:
    """The script for bash; for zsh the same, with bash's functions loaded first."""
    by_value, by_command = [], []
    for command in COMMANDS:
        known = flags(command)
        by_value += [
            f"      {quote(f'{command} --{name}')}) words={quote(' '.join(flag.values))} ;;"
            for name, flag in known.items()
            if flag.values
        ]
        listed = quote(" ".join([*words(command), *(f"--{name}" for name in known)]))
        runs = '"$runs "' if takes_run(command) else ""
        by_command.append(f"      {command}) words={runs}{listed} ;;")
    lines = [
        *(["#compdef regard", "autoload -U +X bashcompinit && bashcompinit"] if zsh else []),
        "_regard() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" run runs=""',
        "  for run in $(compgen -G 'runs/*/config.toml'); do run=${run#runs/}; runs+=\"${run%/config.toml} \"; done",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f"    words={quote(' '.join((*COMMANDS, '--help', '--version')))}",
        "  else",
        '    case "${COMP_WORDS[1]} $before" in',
        *by_value,
        "    esac",
        '    [ -n "$words" ] || case "${COMP_WORDS[1]}" in',
        *by_command,
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _regard regard",  # default: file names where nothing else fits
        # zsh loads the file when the first line is completed, and expects it to do so.
        *(['[ "$funcstack[1]" != _regard ] || _bash_complete -o default -F _regard'] if zsh else []),
    ]
    return "\n".join(lines)


def fish_script() -> str:
    """The script for fish, which also shows each option's help."""
    lines = ["complete -c regard -n __fish_use_subcommand -f"]
    for command in COMMANDS:
        about = (find(command).__doc__ or "").splitlines()[0]
        lines.append(f"complete -c regard -n __fish_use_subcommand -a {command} -d {_fish(about)}")
        within = f"complete -c regard -n '__fish_seen_subcommand_from {command}'"
        if fixed := words(command):
            lines.append(f"{within} -a {_fish(' '.join(fixed))}")
        if takes_run(command):
            lines.append(f"{within} -a '(path basename (path dirname runs/*/config.toml))'")
        for name, (help, values) in flags(command).items():
            lines.append(f"{within} -l {name} -d {_fish(help)}" + (f" -xa {_fish(' '.join(values))}" if values else ""))
    return "\n".join(lines)


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
