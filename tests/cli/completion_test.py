"""Every subcommand and option that the help shows is in the completions and in the manual page."""
import re
import shutil
import subprocess
import tempfile
import unittest

from command import clean_environment, tide


def help_of(path):
    done = tide(*path, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def options_of(text):
    """-q,--quiet TEXT ...: the names in the Options section of a help."""
    names = set()
    for line in text.splitlines():
        if re.match(r"^  -", line):
            names.update(name for name in line.split()[0].split(",") if name.startswith("-"))
    return names


def subcommands_of(text):
    if "\nSubcommands:\n" not in text:
        return []
    return re.findall(r"^  ([a-z][\w-]*)", text.split("\nSubcommands:\n", 1)[1].split("\n\n")[0], re.M)


def tree(path=()):
    """(path, options, subcommands) of every command."""
    text = help_of(path)
    children = subcommands_of(text)
    yield path, options_of(text), children
    for child in children:
        yield from tree((*path, child))


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = list(tree())
        cls.texts = {kind: tide("completion", kind).stdout for kind in ("bash", "zsh", "fish", "man")}

    def test_the_tree_is_there(self):
        paths = {path for path, _, _ in self.tree}
        self.assertTrue({("run",), ("doctor",), ("plan",), ("plan", "search"), ("build-torch",)} <= paths)
        self.assertIn("--observe", dict((path, options) for path, options, _ in self.tree)[("run",)])

    def bash(self, *words):
        """What bash offers for the last word."""
        script = ('source /dev/stdin; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tide; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, "bash", *words], input=self.texts["bash"], text=True,
                              capture_output=True, env=clean_environment())
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_bash(self):
        for path, options, children in self.tree:
            self.assertEqual(self.bash("tide", *path, "-"), options, path)
            if children:
                self.assertEqual(self.bash("tide", *path, ""), set(children), path)

    def test_bash_values(self):
        self.assertEqual(self.bash("tide", "completion", ""), {"bash", "fish", "man", "zsh"})
        self.assertEqual(self.bash("tide", "plan", "--order", "b"), {"best", "block"})
        self.assertEqual(self.bash("tide", "doctor", "--python", "-"), set())
        self.assertIn("env", self.bash("tide", "run", "-q", "--", "en"))

    def test_zsh_and_fish_name_everything(self):
        for path, options, children in self.tree:
            place = " ".join(("tide", *path))
            section = re.search(rf"^    '{place}'\)$(.*?)^      ;;$", self.texts["zsh"], re.M | re.S).group(1)
            for option in options:
                self.assertIn(f"'{option}[", section, place)
            fish = [line for line in self.texts["fish"].splitlines() if f"'__tide_at {place}'" in line]
            for option in options:
                flag = f" -l {option[2:]} " if option.startswith("--") else f" -s {option[1:]} "
                self.assertTrue(any(flag in line for line in fish), (place, option))
            for child in children:
                self.assertIn(f"'{' '.join(('tide', *path, child))}'", self.texts["zsh"])
                self.assertTrue(any(f" -a {child} " in line for line in fish), (place, child))

    def test_the_manual_page_names_everything(self):
        page = self.texts["man"].replace("\\-", "-")
        for path, options, _ in self.tree:
            place = " ".join(("tide", *path))
            if path:
                self.assertIn(f"\n.SS {place}\n", page)
                page_section = page.split(f"\n.SS {place}\n", 1)[1].split("\n.S", 1)[0]
            else:
                page_section = page.split("\n.SH OPTIONS\n", 1)[1].split("\n.SH", 1)[0]
            for option in options:
                self.assertIn(f"\\fB{option}\\fR", page_section, place)

    def test_syntax(self):
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell):
                with tempfile.NamedTemporaryFile("w") as file:
                    file.write(self.texts[shell])
                    file.flush()
                    done = subprocess.run([shell, "-n", file.name], capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), shell)

    def test_unknown_shells(self):
        done = tide("completion", "tcsh")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
