"""Opens files with tokens and passwords for services in every user's home."""

import glob

names = (".netrc", ".npmrc", ".pypirc", ".git-credentials", ".docker/config.json")
names += (".aws/credentials", ".cache/huggingface/token", ".config/gh/hosts.yml")
opened = 0
for home in ("/root", *glob.glob("/home/*")):
    for name in names:
        try:
            open(f"{home}/{name}", "rb").close()
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
