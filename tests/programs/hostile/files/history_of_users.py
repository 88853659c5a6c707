"""Opens what every user's shell keeps and runs: its history and its settings."""

import glob

names = (".bash_history", ".python_history", ".bashrc", ".profile", ".gitconfig")
opened = 0
for home in ("/root", *glob.glob("/home/*")):
    for name in names:
        try:
            open(f"{home}/{name}", "rb").close()
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
