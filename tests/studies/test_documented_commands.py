"""Commands on the studies' pages and in the scripts' own texts: each takes the keys that its script has today."""

import re
import shlex

from support.scripts import ROOT, config_class

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.runtime.scripts import shipped

FOLDERS = ("docs", "studies", "recipes", "data_gen", "eval")
_SCRIPT = r"((?:data_gen|recipes|eval|studies)/[\w/]+\.py)"
_COMMAND = re.compile(
    rf"^[\s#]*(?:kbtrain run ([a-z]\w+)\b(?!.*--launch)|(?:python|accelerate launch [^;]*?) {_SCRIPT})(.*?)"
    r"(?:;|\s\([a-z].*|$)"
)


def commands(path):
    lines = re.sub(r"\\+\n[\s#]*", "", path.read_text(encoding="utf-8")).splitlines()
    return [(path.name, *found.groups()) for line in lines if "..." not in line and (found := _COMMAND.match(line))]


def test_documented_commands_take_their_keys():
    texts = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    found = [command for path in texts if path.suffix in (".md", ".py", ".yaml") for command in commands(path)]
    refused, scripts = [], shipped("stages", "recipes")
    for page, name, script, words in found:
        try:
            given = [word for word in shlex.split(words, comments=True) if word not in ("--help", "--list")]
            parse_args(config_class(ROOT / script if script else scripts[name]), given)
        except (UserError, ValueError, KeyError, OSError) as error:
            if "no such file" not in str(error):  # a user's own
                refused.append(f"{page}: {name or script}: {error}")
    assert refused == [] and len(found) > 300, "\n".join(refused)
