"""`retrysafe completion bash|zsh`: print a completion script, made from the parsers."""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.cli import exits

BASH = """# bash completion for retrysafe: eval "$(retrysafe completion bash)"
_retrysafe() {{
    local words="" at="" word
    for word in ${{COMP_WORDS[@]:1:COMP_CWORD-1}}; do
        case "$word" in -*) ;; *) case " {paths} " in *" $at${{at:+/}}$word "*) at="$at${{at:+/}}$word" ;; esac ;; esac
    done
    case "$at" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
    if [ ${{#COMPREPLY[@]}} -eq 0 ]; then COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")); fi
}}
complete -F _retrysafe retrysafe
"""

# Its own text: zsh reads `${x:1:NAME}` as a modifier, and `words` and `path` are arrays of its own there.
ZSH = """#compdef retrysafe
# zsh completion for retrysafe: _retrysafe in a folder of $fpath, or after compinit eval "$(retrysafe completion zsh)"
_retrysafe() {{
    local possible="" at="" word
    for word in ${{words[2,CURRENT-1]}}; do
        case "$word" in -*) continue ;; esac
        case " {paths} " in *" $at${{at:+/}}$word "*) at="$at${{at:+/}}$word" ;; esac
    done
    case "$at" in
{cases}
    esac
    compadd -- ${{=possible}} || _files
}}
if [[ $funcstack[1] == _retrysafe ]]; then _retrysafe "$@"; else compdef _retrysafe retrysafe; fi
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a completion script for bash or zsh",
        examples=('eval "$(retrysafe completion bash)"', "retrysafe completion zsh > ~/.zfunc/_retrysafe"),
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from retrysafe.cli.main import build_parser

    words = list_words(build_parser())
    print(build_bash(words) if args.shell == "bash" else build_zsh(words), end="")
    return exits.DONE


def list_words(parser: argparse.ArgumentParser, path: str = "") -> dict[str, list[str]]:
    """By the path of a command (`keys/list`), the words that may follow it: its verbs, options and choices."""
    found: dict[str, list[str]] = {path: []}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                found[path].append(name)
                found |= list_words(child, f"{path}/{name}" if path else name)
        else:
            found[path] += [each for each in action.option_strings if each.startswith("--")]
            found[path] += [str(choice) for choice in action.choices or ()]
    return found


def build_bash(words: dict[str, list[str]]) -> str:
    return BASH.format(paths=" ".join(path for path in words if path), cases=build_cases(words, "words"))


def build_zsh(words: dict[str, list[str]]) -> str:
    return ZSH.format(paths=" ".join(path for path in words if path), cases=build_cases(words, "possible"))


def build_cases(words: dict[str, list[str]], variable: str) -> str:
    return "\n".join(
        f"        '{path}') {variable}='{' '.join(dict.fromkeys(each))}' ;;" for path, each in words.items()
    )
