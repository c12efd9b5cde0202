#!/usr/bin/env python3
"""test_tidy.py: the checker finds each fault that is planted in a small tree, and none in the tree without it. Writes
only into a temporary folder.
"""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402

GOOD = {
    "LICENSE": "Apache\n",
    "CHANGELOG.md": "# Changes\n",
    "docs/protocol.md": "# P\n\n## Invariants\n\nI1 one. I2 two.\n\n## Other\n\nI3 is no invariant\n",
    "include/mooncake/pg.h": "/* pg.h */\nMCPG_API int mcpg_a(void); /* MCPG_API int mcpg_no(void); */\n"
                             "MCPG_API MCPG_MUST_USE\n    int mcpg_b(int x);\n",
    "tests/tidy/symbols.txt": "# symbols\nmcpg_a\nmcpg_b\n",
    "src/coordinator/coord_step.c": "/* keeps I1, I2 */\n#include \"common/base.h\"\n"
                                    "int f(void) { return 1; } /* strcpy(a, b) default: */\n",
    "src/coordinator/coord_host.c": "/* host */\n#include \"rpc/rpc.h\"\n"
                                    "int g(int a) { switch (a) { default: return 1; } }\n",
    "src/agent/agent_step.c": "/* agent */\nconst char *s = \"strcpy(default: \";\n",
    "src/dataplane/x.c": "/* dp */\nint snprintf_like(void);\n",
    "python/mooncake/run.py": "#!/usr/bin/env python3\n\"\"\"run.py\"\"\"\n",
    "scripts/x.sh": "#!/bin/sh\n# x\n",
}


def plus(name, text):
    return lambda tree: tree.__setitem__(name, tree.get(name, "/* c */\n") + text)


def put(name, text):
    return lambda tree: tree.__setitem__(name, text)


def drop(name):
    return lambda tree: tree.pop(name)


FAULTS = [
    (put("src/common/a.c", "int a;\n"), "src/common/a.c:1: does not start with a comment"),
    (put("python/mooncake/b.py", "#!/usr/bin/env python3\nimport os\n"), "python/mooncake/b.py:1: does not start"),
    (plus("src/common/a.c", "void f(char *a) { strcpy(a, \"\"); }\n"), "src/common/a.c:2: strcpy is banned"),
    (plus("src/common/a.c", "\n\nint n = atoi (x);\n"), "src/common/a.c:4: atoi is banned"),
    (plus("src/common/a.c", "int a;\n" * 600), "src/common/a.c: 601 lines"),
    (plus("include/mooncake/x.h", "/* " + "x" * 118 + " */\n"), "include/mooncake/x.h:2: 124 columns"),
    (plus("src/coordinator/coord_step.c", "int h(int a) { switch (a) { default: return 1; } }\n"),
     "coord_step.c:4: default in a switch"),
    (plus("src/agent/agent_step.c", "int h(int a) { switch (a) { default : return 1; } }\n"),
     "agent_step.c:3: default in a switch"),
    (plus("src/common/a.c", "/* " + "TO" + "DO later */\n"), "src/common/a.c:2: " + "TO" + "DO"),
    (plus("docs/x.md", "XX" + "X\n"), "docs/x.md:2: " + "XX" + "X"),
    (plus("src/coordinator/coord_step.c", "#include \"agent/agent.h\"\n"), "src/coordinator/ may not include agent/"),
    (plus("src/agent/agent_step.c", "# include \"coordinator/coord.h\"\n"), "src/agent/ may not include coordinator/"),
    (plus("src/dataplane/x.c", "#include \"agent/agent.h\"\n"), "src/dataplane/ may not include agent/"),
    (plus("src/dataplane/x.c", "#include \"coordinator/coord.h\"\n"), "src/dataplane/ may not include coordinator/"),
    (plus("README.md", "see .." + "/shared/x\n"), "README.md:2: .." + "/shared is a place"),
    (plus("scripts/x.sh", "cd /wo" + "rk/main\n"), "scripts/x.sh:3: /wo" + "rk/ is a place"),
    (plus("scripts/x.sh", "cd /ro" + "ot/x\n"), "is a place on one machine"),
    (plus("scripts/x.sh", "cd /ho" + "me/x\n"), "is a place on one machine"),
    (plus("include/mooncake/pg.h", "MCPG_API void mcpg_c(void);\n"), "pg.h: mcpg_c is there"),
    (plus("tests/tidy/symbols.txt", "mcpg_d\n"), "pg.h: mcpg_d of tests/tidy/symbols.txt is missing"),
    (drop("tests/tidy/symbols.txt"), "symbols.txt is missing"),
    (drop("LICENSE"), "LICENSE is missing"),
    (drop("CHANGELOG.md"), "CHANGELOG.md is missing"),
    (put("src/coordinator/coord_step.c", "/* keeps I1 and I22 */\n"), "invariant I2 is named nowhere"),
    (put("docs/protocol.md", "# P\n"), "docs/protocol.md: no invariants"),
]


def check(tree, library=None):
    with tempfile.TemporaryDirectory() as root:
        for name, text in tree.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return tidy.check_tree(root, library)


class TestTidy(unittest.TestCase):
    def test_good_tree(self):
        self.assertEqual(check(dict(GOOD)), [])

    def test_planted_faults(self):
        for plant, expected in FAULTS:
            tree = dict(GOOD)
            plant(tree)
            faults = check(tree)
            with self.subTest(expected=expected):
                self.assertTrue(any(expected in fault for fault in faults), faults)
                self.assertEqual(len(faults), 1, faults)

    def test_library(self):
        """A library that exports one function too many and lacks one."""
        with tempfile.TemporaryDirectory() as folder:
            source, library = os.path.join(folder, "x.c"), os.path.join(folder, "libx.so")
            with open(source, "w", encoding="utf-8") as f:
                f.write("int mcpg_a(void) { return 1; }\nint leaked(void) { return 1; }\n")
            done = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-nostdlib", "-o", library, source])
            self.assertEqual(done.returncode, 0)
            faults = check(dict(GOOD), library)
            self.assertEqual(faults, ["libx.so: leaked is there, but tests/tidy/symbols.txt does not have it",
                                      "libx.so: mcpg_b of tests/tidy/symbols.txt is missing"])
            with open(library, "wb") as f:
                f.write(b"no library")
            self.assertEqual(len(check(dict(GOOD), library)), 1)


if __name__ == "__main__":
    unittest.main()
