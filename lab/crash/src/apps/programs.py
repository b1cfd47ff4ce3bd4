"""Applications that work on a file system, and what they check after a crash.

    programs.py work NAME DIR SCRATCH STEPS SEED
        Works in DIR, which is on the file system under test. SCRATCH is elsewhere.
    programs.py log NAME DIR SCRATCH STEPS SEED FILE
        The same, but what it says goes to the file, and it waits for nobody.
    programs.py judge NAME SCRATCH
        Reads lines "DIR ACKNOWLEDGED BEGUN" and answers each with "ok STEP" or "bad WHY".

The worker says "ready" when its preparation is durable, "begin K" before step K and "ack K" when the application has
acknowledged step K. After each line it waits for a line on its standard input, so that the reader can note the moment.
All that a step writes follows from its number, so the judge needs no other record.

A step that its application never makes durable by itself (a last rename without an fsync behind it) is promised once the
next step is acknowledged: "late" below. That is what ext4 and XFS give, where an fsync carries what was renamed before it.
"""

import hashlib
import mailbox
import os
import random
import shutil
import sqlite3
import subprocess
import sys


class Bad(Exception):
    """What the application lost, or cannot read."""


def text(step, size, salt=""):
    """Returns `size` bytes that follow from the step."""
    out, n = [], 0
    while n < size:
        line = hashlib.sha256(f"{salt}/{step}/{len(out)}".encode()).hexdigest() + "\n"
        out.append(line)
        n += len(line)
    return "".join(out)[:size].encode()


def sync_path(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(top):
    """Makes all of a tree durable, by an fsync of each file and each directory."""
    for folder, _, files in os.walk(top):
        for path in [folder] + [os.path.join(folder, f) for f in files]:
            if not os.path.islink(path):
                sync_path(path)


def write_file(path, data, sync=True):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path):
    """Returns the content, or None if there is no such file."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def run(args, cwd=None, env=None, ok=(0,)):
    done = subprocess.run(args, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    said = (done.stdout + done.stderr).strip()
    if done.returncode not in ok:
        raise Bad(f"{' '.join(args[:6])}: exit {done.returncode}: {said}")
    return done.stdout


class App:
    """One application. `late`: how many of the last acknowledged steps may be missing."""

    late = 0

    def __init__(self, folder, scratch):
        self.dir, self.scratch = folder, scratch

    def prepare(self):
        """Makes what the steps need; all of it is made durable by the caller."""

    def step(self, k):
        """Performs step k."""
        raise NotImplementedError

    def last(self):
        """Checks all and returns the last step that is there."""
        raise NotImplementedError

    def close(self):
        """Ends."""

    def judge(self, acknowledged, begun):
        found = self.last()
        if found < acknowledged - self.late:
            raise Bad(f"step {found} is the last that is there; {acknowledged} was acknowledged")
        if found > begun:
            raise Bad(f"step {found} is there; only {begun} were begun")
        return found


class Git(App):
    """Commits with all of git's fsyncs, now and then a packing of all. git renames a reference and syncs nothing behind it."""

    late = 1

    def git(self, *args, ok=(0,)):
        env = dict(os.environ, HOME=self.scratch, GIT_CONFIG_NOSYSTEM="1")
        for who in ("AUTHOR", "COMMITTER"):
            env[f"GIT_{who}_NAME"], env[f"GIT_{who}_EMAIL"] = "a", "a@example.org"
        options = ["core.fsync=all", "core.fsyncMethod=fsync", "gc.auto=0", "safe.directory=*", "advice.detachedHead=false"]
        words = ["git"] + [w for o in options for w in ("-c", o)]
        return run(words + list(args), cwd=self.dir, env=env, ok=ok)

    def prepare(self):
        self.git("init", "-q", "-b", "main", ".")
        self.step(0)

    def step(self, k):
        write_file(os.path.join(self.dir, f"f{k % 4}"), text(k, 1200, "git"), sync=False)
        write_file(os.path.join(self.dir, f"g{k}"), text(k, 40, "git"), sync=False)
        if k > 8:
            os.remove(os.path.join(self.dir, f"g{k - 8}"))
        self.git("add", "-A")
        self.git("commit", "-q", "-m", str(k))
        if k % 5 == 4:
            self.git("repack", "-a", "-d", "-q")
            self.git("pack-refs", "--all")
            self.git("prune-packed", "-q")

    def last(self):
        said = self.git("fsck", "--full", "--no-dangling", "--no-progress")
        if said.strip():
            raise Bad(f"git fsck: {said.strip()}")
        steps = self.git("log", "--format=%s").split()
        found = int(steps[0])
        if steps != [str(k) for k in range(found, -1, -1)]:
            raise Bad(f"git log: {steps}")
        return found


class Sqlite(App):
    """Transactions that move amounts between two tables."""

    mode, sync = "wal", "FULL"

    def open(self):
        db = sqlite3.connect(os.path.join(self.dir, "test.db"), isolation_level=None, timeout=60)
        db.execute(f"PRAGMA journal_mode={self.mode}")
        db.execute(f"PRAGMA synchronous={self.sync}")
        db.execute("PRAGMA wal_autocheckpoint=12")
        return db

    def prepare(self):
        self.db = self.open()
        self.db.execute("CREATE TABLE a(k INTEGER PRIMARY KEY, v BLOB)")
        self.db.execute("CREATE TABLE b(k INTEGER PRIMARY KEY, n INTEGER, total INTEGER)")
        self.db.execute("INSERT INTO b VALUES (0, 0, 0)")

    def step(self, k):
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO a VALUES (?, ?)", (k, text(k, 300 + k * 977 % 9000, "sqlite")))
        db.execute("DELETE FROM a WHERE k <= ?", (k - 12,))
        db.execute("UPDATE b SET n = ?, total = total + ?", (k, k * k))
        db.execute("COMMIT")

    def close(self):
        self.db.close()

    def last(self):
        db = self.open()
        try:
            said = [r[0] for r in db.execute("PRAGMA integrity_check")]
            if said != ["ok"]:
                raise Bad(f"integrity_check: {said[:5]}")
            found, total = db.execute("SELECT n, total FROM b").fetchone()
            if total != sum(k * k for k in range(found + 1)):
                raise Bad(f"after step {found} the total is {total}")
            rows = dict(db.execute("SELECT k, v FROM a"))
            if sorted(rows) != list(range(max(found - 11, 1), found + 1)):
                raise Bad(f"after step {found} there are the rows {sorted(rows)}")
            for k, v in rows.items():
                if v != text(k, 300 + k * 977 % 9000, "sqlite"):
                    raise Bad(f"row {k} has another content")
            return found
        except sqlite3.DatabaseError as e:
            raise Bad(f"sqlite: {e}") from e
        finally:
            db.close()


class SqliteDelete(Sqlite):
    """The default mode: a commit is the removal of the journal, and nothing is synced behind it."""

    mode, late = "delete", 1


class SqliteExtra(Sqlite):
    """The same, with the directory synced behind the removal."""

    mode, sync = "delete", "EXTRA"


class SqliteTruncate(Sqlite):
    mode = "truncate"


class SqlitePersist(Sqlite):
    mode = "persist"


class Slots(App):
    """Stores with keys: step k overwrites slot k % 24."""

    def put(self, k):
        return b"slot%02d" % (k % 24), b"%d " % k + text(k, 200 + k * 577 % 3000, "slots")

    def check(self, pairs):
        """The slots must be those of one step, the last; returns it."""
        steps = {key: int(value.split(b" ", 1)[0]) for key, value in pairs.items()}
        found = max(steps.values(), default=0)
        expected = dict(self.put(k) for k in range(max(found - 23, 1), found + 1))
        for key in sorted(set(expected) | set(pairs)):
            if pairs.get(key) != expected.get(key):
                raise Bad(f"after step {found} {key.decode()} is of step {steps.get(key)}, or has another content")
        return found


class Lmdb(Slots):
    def open(self):
        import lmdb

        return lmdb.open(os.path.join(self.dir, "db"), map_size=8 << 20)

    def prepare(self):
        self.env = self.open()

    def step(self, k):
        with self.env.begin(write=True) as t:
            t.put(*self.put(k))

    def close(self):
        self.env.close()

    def last(self):
        import lmdb

        try:
            env = self.open()
            try:
                with env.begin() as t:
                    return self.check(dict(t.cursor()))
            finally:
                env.close()
        except lmdb.Error as e:
            raise Bad(f"lmdb: {e}") from e


class Leveldb(Slots):
    """Synced writes into small tables, so that compactions come every few steps."""

    def open(self):
        import plyvel

        return plyvel.DB(
            os.path.join(self.dir, "db"), create_if_missing=True, paranoid_checks=True, write_buffer_size=16 << 10, compression=None
        )

    def prepare(self):
        self.db = self.open()

    def step(self, k):
        self.db.put(*self.put(k), sync=True)

    def close(self):
        self.db.close()

    def last(self):
        import plyvel

        try:
            db = self.open()
            try:
                return self.check(dict(db.iterator(verify_checksums=True)))
            finally:
                db.close()
        except plyvel.Error as e:
            raise Bad(f"leveldb: {e}") from e


class Maildir(App):
    """Deliveries by Python's mailbox: the content is synced, then linked into new/. The reader moves mails to cur/ and removes
    old ones. The directories are never synced, so the mails found must be those of a moment."""

    late, new, kept = 1, 4, 12

    def open(self):
        return mailbox.Maildir(os.path.join(self.dir, "mail"), create=True)

    def prepare(self):
        self.box, self.keys = self.open(), {}

    def step(self, k):
        body = text(k, 200 + k * 733 % 6000, "mail").decode()
        self.keys[k] = self.box.add(f"Subject: {k}\n\n{body}")
        if k > self.new:
            key = self.keys[k - self.new]
            message = self.box.get_message(key)
            message.set_subdir("cur")
            message.add_flag("S")
            old = os.path.join(self.dir, "mail", "new", key)
            os.rename(old, os.path.join(self.dir, "mail", "cur", key + ":2,S"))
        if k > self.kept:
            os.remove(os.path.join(self.dir, "mail", "cur", self.keys.pop(k - self.kept) + ":2,S"))

    def last(self):
        places = {}
        for place in ("new", "cur"):
            folder = os.path.join(self.dir, "mail", place)
            for name in os.listdir(folder):
                data = read_file(os.path.join(folder, name))
                head, _, body = data.partition(b"\n\n")
                words = head.split()
                if len(words) != 2 or not words[1].isdigit():
                    raise Bad(f"{place}/{name} of {len(data)} bytes is no mail")
                k = int(words[1])
                if body.rstrip(b"\n") != text(k, 200 + k * 733 % 6000, "mail").rstrip(b"\n"):
                    raise Bad(f"mail {k} in {place} is damaged: {len(data)} bytes")
                if k in places:
                    raise Bad(f"mail {k} is there twice, in {places[k]} and {place}")
                places[k] = place
        found = max(places, default=0)
        # Step k links k, moves k - new, removes k - kept, in this order: after a crash the last one or two may not be done.
        for moved in (found - self.new, found - self.new - 1):
            for gone in (found - self.kept, found - self.kept - 1):
                expected = {k: "cur" if k <= moved else "new" for k in range(max(gone + 1, 1), found + 1)}
                if places == expected and (moved, gone) != (found - self.new - 1, found - self.kept):
                    return found
        raise Bad(f"these mails are of no moment: {places}")


class Editor(App):
    """A new version beside the file, synced, then renamed over it: the way of most editors."""

    late = 1

    def content(self, k):
        return b"%d\n" % k + text(k, 100 + k * 1777 % 20000, "editor") + b"\n"

    def whole(self, name):
        """Returns which version the file has; None if there is no file, or not a whole version."""
        data = read_file(os.path.join(self.dir, name))
        first = (data or b"").split(b"\n", 1)[0]
        return int(first) if first.isdigit() and self.content(int(first)) == data else None

    def prepare(self):
        write_file(os.path.join(self.dir, "file"), self.content(0))

    def step(self, k):
        write_file(os.path.join(self.dir, ".file.tmp"), self.content(k))
        os.rename(os.path.join(self.dir, ".file.tmp"), os.path.join(self.dir, "file"))

    def last(self):
        found = self.whole("file")
        if found is None:
            data = read_file(os.path.join(self.dir, "file"))
            raise Bad("the file is " + ("missing" if data is None else f"damaged: {len(data)} bytes"))
        return found


class EditorDir(Editor):
    """The same with the directory synced behind it."""

    late = 0

    def step(self, k):
        super().step(k)
        sync_path(self.dir)


class Replace(Editor):
    """The same without any fsync: every version whole, and none older than one found before. Nothing is promised of how new."""

    late = 1 << 40

    def step(self, k):
        write_file(os.path.join(self.dir, ".file.tmp"), self.content(k), sync=False)
        os.rename(os.path.join(self.dir, ".file.tmp"), os.path.join(self.dir, "file"))


class Vim(Editor):
    """vim itself. It moves the file away, writes and syncs a new one, and removes the old one: until then that is the copy to
    fall back to. It would write in place below /tmp, where the mounts of tests are, but for `backupskip`."""

    late = 0

    def step(self, k):
        fresh = os.path.join(self.scratch, "fresh")
        write_file(fresh, self.content(k), sync=False)
        command = ["vim.tiny", "-N", "-u", "NONE", "-i", "NONE", "-n", "-es"]
        command += ["-c", "set nomodeline writebackup backupcopy=no backupskip= fsync", "-c", "%d", "-c", f"0r {fresh}", "-c", "$g/^$/d"]
        run(command + ["-c", "wq!", os.path.join(self.dir, "file")])

    def last(self):
        versions = [self.whole(name) for name in ("file", "file~")]
        if versions == [None, None]:
            sizes = [len(read_file(os.path.join(self.dir, n)) or b"") for n in ("file", "file~")]
            raise Bad(f"neither the file nor its copy is whole: {sizes} bytes; there are {os.listdir(self.dir)}")
        return max(v for v in versions if v is not None)


class Dpkg(App):
    """dpkg itself, unpacking one version of a package over another."""

    files = 12

    def body(self, k, n):
        return text(k, 50 + (k * 31 + n * 977) % 9000, f"dpkg{n}")

    def names(self, k):
        """Each version has a file of its own too, which the next one removes."""
        return [f"opt/pack/d{n % 3}/f{n}" for n in range(self.files)] + [f"opt/pack/only-{k}"]

    def package(self, k):
        out = os.path.join(self.scratch, f"p{k}.deb")
        if not os.path.exists(out):
            top = os.path.join(self.scratch, "build")
            shutil.rmtree(top, ignore_errors=True)
            os.makedirs(os.path.join(top, "DEBIAN"))
            control = f"Package: pack\nVersion: {k}\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: files\n"
            write_file(os.path.join(top, "DEBIAN/control"), control.encode(), sync=False)
            sums = []
            for n, name in enumerate(self.names(k)):
                os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
                write_file(os.path.join(top, name), self.body(k, n), sync=False)
                sums.append(f"{hashlib.md5(self.body(k, n)).hexdigest()}  {name}\n")
            write_file(os.path.join(top, "DEBIAN/md5sums"), "".join(sums).encode(), sync=False)
            run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", top, out])
        return out

    def dpkg(self, *args):
        env = dict(os.environ, LC_ALL="C", PATH="/usr/sbin:/usr/bin:/sbin:/bin")
        # Images of containers tell dpkg to do without fsync (force-unsafe-io); then it asks for nothing that could be promised.
        options = ["--force-not-root,script-chrootless,bad-path", "--refuse-unsafe-io"]
        return run(["dpkg", f"--root={self.dir}", *options, *args], env=env)

    def prepare(self):
        for folder in ("info", "updates", "triggers"):
            os.makedirs(os.path.join(self.dir, "var/lib/dpkg", folder))
        write_file(os.path.join(self.dir, "var/lib/dpkg/status"), b"")
        write_file(os.path.join(self.dir, "var/lib/dpkg/available"), b"")
        self.dpkg("-i", self.package(0))

    def step(self, k):
        self.dpkg("-i", self.package(k))

    def state(self):
        env = dict(os.environ, LC_ALL="C")
        admin = os.path.join(self.dir, "var/lib/dpkg")
        said = run(["dpkg-query", f"--admindir={admin}", "-W", "-f", "${Version} ${db:Status-Status}", "pack"], env=env)
        version, status = said.split()
        return int(version), status

    def last(self):
        version, status = self.state()
        whole = {}
        for k in range(max(version - 1, 0), version + 2):
            whole[k] = [n for n, name in enumerate(self.names(k)) if read_file(os.path.join(self.dir, name)) == self.body(k, n)]
        if status == "installed":
            if len(whole[version]) != self.files + 1:
                raise Bad(f"{version} is installed, but of its files only {whole[version]} are whole")
            said = self.dpkg("--verify", "pack")
            if said.strip():
                raise Bad(f"dpkg --verify: {said}")
            return version
        for n in range(self.files):
            if not any(n in found for found in whole.values()):
                data = read_file(os.path.join(self.dir, self.names(version)[n]))
                # Between versions dpkg has a file away for no moment: it renames the new one over it.
                raise Bad(f"while {version} is {status}, file {n} is of no version: {None if data is None else len(data)} bytes")
        # Interrupted: dpkg can be asked to go on, and then all is there.
        before = version
        self.dpkg("-i", self.package(version))
        if self.state() != (version, "installed") or self.dpkg("--verify", "pack").strip():
            raise Bad(f"{status} {version} could not be installed again: {self.state()}")
        return before


APPS = {
    "git": Git,
    "sqlite-wal": Sqlite,
    "sqlite-delete": SqliteDelete,
    "sqlite-extra": SqliteExtra,
    "sqlite-truncate": SqliteTruncate,
    "sqlite-persist": SqlitePersist,
    "lmdb": Lmdb,
    "leveldb": Leveldb,
    "maildir": Maildir,
    "editor": Editor,
    "editor-dir": EditorDir,
    "replace": Replace,
    "vim": Vim,
    "dpkg": Dpkg,
}


def ask(line):
    """Says a line and waits until it has been noted."""
    print(line, flush=True)
    if not sys.stdin.readline():
        sys.exit(3)


def work(name, folder, scratch, steps, seed, say=ask):
    random.seed(seed)
    app = APPS[name](folder, scratch)
    app.prepare()
    sync_tree(folder)
    sync_path(os.path.dirname(folder))
    say("ready")
    for k in range(1, steps + 1):
        say(f"begin {k}")
        app.step(k)
        say(f"ack {k}")
    app.close()


def judge(name, scratch):
    for line in sys.stdin:
        folder, acknowledged, begun = line.split()
        try:
            found = APPS[name](folder, scratch).judge(int(acknowledged), int(begun))
            answer = f"ok {found}"
        except Exception as e:  # Whatever the application says of what it found is a verdict.
            kind = "" if isinstance(e, Bad) else f"{type(e).__name__}: "
            answer = "bad " + " ".join(f"{kind}{e}".split())[:400]
        print(answer, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        name, folder, scratch, steps, seed = sys.argv[2:]
        work(name, folder, scratch, int(steps), int(seed))
    elif sys.argv[1] == "log":
        name, folder, scratch, steps, seed, log = sys.argv[2:]
        with open(log, "a", buffering=1) as f:
            work(name, folder, scratch, int(steps), int(seed), lambda line: f.write(line + "\n"))
    else:
        judge(*sys.argv[2:])
