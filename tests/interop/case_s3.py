"""The lake in a bucket of moto, a server that speaks S3: written by the product, read from there by Java Paimon and pypaimon."""
import contextlib
import json
import os
import ssl
import subprocess
import urllib.request

from case_readback import LAKE
from readers import Java
from world import HERE, Node, build, case, check, free_port, same, tail, until

KEY, SECRET = "me", "hush-hush"
# A user of moto's with a key of its own, who may do what is named.
USER = """import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
iam.create_user(UserName=sys.argv[2])
rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": sys.argv[3:], "Resource": "*"}]}
iam.put_user_policy(UserName=sys.argv[2], PolicyName="p", PolicyDocument=json.dumps(rights))
made = iam.create_access_key(UserName=sys.argv[2])["AccessKey"]
print(made["AccessKeyId"], made["SecretAccessKey"])
"""


class Bucket:
    """A server with one bucket, `lake`, and how each program reaches it."""

    def __init__(self, world, tls=False):
        port, python, folder = free_port(), os.environ["LAKEWARD_INTEROP_MOTO"], world.here
        self.endpoint, self.context, flags = f"http://127.0.0.1:{port}", None, []
        if tls:
            subprocess.run([python, HERE / "certificates.py", folder], check=True, timeout=60)
            self.endpoint, flags = f"https://127.0.0.1:{port}", ["-s", "-c", folder / "cert.pem", "-k", folder / "key.pem"]
            self.context = ssl.create_default_context(cafile=folder / "ca.pem")
        name = "moto-tls" if tls else "moto"
        self.process = world.start(name, [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", port, *flags])

        def made():
            check(self.process.poll() is None, f"moto ended: {tail(self.process.log)}")
            with contextlib.suppress(OSError):
                return self.ask("PUT", "/lake") == 200
        until(60, "moto", made)
        self.flags = [f"--s3.endpoint={self.endpoint}", f"--s3.access-key={KEY}", f"--s3.secret-key={SECRET}"]
        self.java = {"s3.endpoint": self.endpoint, "s3.access-key": KEY, "s3.secret-key": SECRET, "s3.path.style.access": "true"}
        self.python = {"fs.s3.endpoint": self.endpoint, "fs.s3.accessKeyId": KEY, "fs.s3.accessKeySecret": SECRET, "fs.s3.region": "us-east-1"}

    def ask(self, method, path):
        request = urllib.request.Request(self.endpoint + path, method=method, headers={"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"})
        with urllib.request.urlopen(request, timeout=5, context=self.context) as answer:
            return answer.status


    def user(self, name, *rights):
        """Key and secret of a new user."""
        done = subprocess.run([os.environ["LAKEWARD_INTEROP_MOTO"], "-c", USER, self.endpoint, name, *rights], stdout=subprocess.PIPE, check=True, timeout=60)
        return done.stdout.decode().split()

    def verify(self):
        """From now on signatures and rights are looked at."""
        plain = {"Content-Type": "text/plain"}  # a form would be taken apart
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", b"0", plain), timeout=5):
            pass


def python_rows(bucket, warehouse, table, columns):
    from pypaimon import CatalogFactory
    table = CatalogFactory.create({"warehouse": warehouse, **bucket.python}).get_table(table)
    builder = table.new_read_builder()
    data = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return [list(row) for row in zip(*(data.column(c).to_pylist() for c in columns))]


@case("s3", "the quickstart with its lake in a bucket (moto): node, rounds, a rescale; Java Paimon and pypaimon read the same rows from there, each once, beside a node Java appends and the next round goes on; "
            "what `storage` promises holds on moto, a race of creates too; signatures and rights that moto looks at, a denied one named; no secret in any log")
def s3(world):
    bucket = Bucket(world)
    tests = os.environ.get("LAKEWARD_INTEROP_TESTS") or build()["it"]
    conforms = world.start("conforms", [tests, "s3::conformance"], stdout=subprocess.PIPE, env={**os.environ, "LAKEWARD_INTEROP_S3": bucket.endpoint, "RUST_BACKTRACE": "0"})
    out = conforms.communicate(timeout=100)[0].decode()
    check(conforms.returncode == 0 and " 0 failed" in out, f"{tail(conforms.log, 30)}\n{out[-3000:]}")

    warehouse, folder = "s3://lake/quick", world.here / "quick"
    argv = [world.lakeward(), "quickstart", "--dir", folder, "--warehouse", warehouse, "--json", "--log-level", "trace", *bucket.flags]
    quick = world.start("quickstart", argv, stdout=subprocess.PIPE)
    out = quick.communicate(timeout=100)[0].decode()
    check(quick.returncode == 0, f"the quickstart ended with {quick.returncode}: {tail(quick.log)}")
    told = json.loads(out)
    rows = told["rows_written"]
    for summary in told["rounds"]:
        check(sum(summary["requests"].values()) > 5, f"a round tells its requests: {summary['requests']}")
    java = Java(world, f"{warehouse}/demo.db/orders", store=bucket.java)
    keys = sorted(row[0] for row in java.rows(["order_id"]))
    same(len(keys), rows, "rows that Java Paimon finds")
    same(len(set(keys)), rows, "rows that Java Paimon finds once")
    same(sorted(row[0] for row in python_rows(bucket, warehouse, "demo.orders", ["order_id"])), keys, "rows of pypaimon and Java Paimon")
    same(sorted({f["total"] for f in java.files()}), [2, 4], "bucket totals")

    shown = subprocess.run([world.lakeward(), "inspect", f"{warehouse}/demo.db/orders", "--json", *bucket.flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    check(shown.returncode == 0, f"`inspect` of a bucket: {shown.stderr.decode()[-800:]}")
    text = quick.log and open(quick.log, errors="replace").read()
    check(SECRET not in text + out + shown.stdout.decode() + shown.stderr.decode(), "a secret shows")

    appended = beside_java(world, bucket)
    signed(world, bucket)

    secured = Bucket(world, tls=True)
    argv = [world.lakeward(), "quickstart", "--warehouse", "s3a://lake/quick", "--json", *secured.flags]
    for more, code, words in ([f"--set=s3.ca_file={world.here}/ca.pem"], 0, ""), ([], 3, "certificate"):
        done = subprocess.run([*argv, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        said = done.stderr.decode()
        check((done.returncode == 0) == (code == 0) and words in said, f"over TLS with {more}: {done.returncode}: {said[-800:]}")
    return f"{rows + appended} rows, {sum(sum(s['requests'].values()) for s in told['rounds'])} requests in two rounds"


def beside_java(world, bucket):
    """A node with its warehouse in the bucket: rounds and appends of Java in turn."""
    node = Node(f"127.0.0.1:{free_port()}", "s3://lake/beside", world.here / "node")
    node.argv = [world.lakeward(), "node", "--dir", node.folder, "--listen", node.address, "--warehouse", node.warehouse, *bucket.flags]
    world.serve(node)
    client, java, written = world.client(node.address), Java(world, f"{node.warehouse}/s.db/t", store=bucket.java), []
    client.ask("create", "s.t", columns=[("id", "BIGINT"), ("note", "STRING")], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    for turn in range(3):
        rows = [[id, f"row {id}"] for id in range(turn * 2000, turn * 2000 + 1000)]
        client.ask("append", "s.t", rows=rows)
        done = []

        def tiered():
            done.extend(world.round(node.address, *bucket.flags)[0])
            return sum(r["rows"] for r in done) >= len(rows)
        until(60, f"round {turn}", tiered)
        same(sum(r["rows"] for r in done), len(rows), f"rows of round {turn}")
        theirs = [[id, "of Java"] for id in range(turn * 2000 + 1000, turn * 2000 + 1010)]
        java.append(theirs)
        written += rows + theirs
        same(sorted(java.rows(["id", "note"])), sorted(written), f"rows after turn {turn}")
    return len(written)


def signed(world, bucket):
    """With a server that looks at signatures and rights."""
    key, secret = bucket.user("all", "s3:*")
    poor, poor_secret = bucket.user("poor", "s3:GetObject", "s3:ListBucket")
    bucket.verify()
    # What comes first is a HEAD, whose answer has no body that would tell why.
    for who, flags, done_well, words in [("who may all", (key, secret), True, []),
                                         ("with a wrong secret", (key, "hush-wrong"), False, ["access is denied", "s3:GetObject", "s3://lake/signed"]),
                                         ("who may only read", (poor, poor_secret), False, ["access is denied", "s3:PutObject", "s3://lake/signed2/"])]:
        warehouse = "s3://lake/signed2" if flags[0] == poor else "s3://lake/signed"
        argv = [world.lakeward(), "quickstart", "--warehouse", warehouse, "--json", f"--s3.endpoint={bucket.endpoint}",
                f"--s3.access-key={flags[0]}", f"--s3.secret-key={flags[1]}"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        said = done.stderr.decode()
        check((done.returncode == 0) == done_well and all(word in said for word in words), f"quickstart of one {who}: {done.returncode}: {said[-1500:]}")
        check(flags[1] not in said + done.stdout.decode(), "a secret shows")
