"""The lake in a bucket of moto, a server that speaks S3: written by the product, read from there by Java Paimon and pypaimon."""
import contextlib
import json
import os
import ssl
import subprocess
import urllib.request

import cluster
from case_cluster import COLUMNS, batch, snapshot_is_ours
from case_cluster import LAKE as CLUSTER_LAKE
from case_readback import LAKE
from case_wire import TINY
from checks import rows_equal
from readers import Java
from world import HERE, Node, build, case, check, free_port, same, tail, until

KEY, SECRET = "me", "hush-hush"
# Two things that moto lacks. It looks whether an object is there and then writes it, in threads: of creates that race several may pass.
# And botocore, by which it looks at signatures, never signs the user agent; the AWS SDK of Fluss's servers does.
MOTO = """import sys, threading
import botocore.auth, moto.server
from moto.s3.responses import S3Response
lock, put = threading.Lock(), S3Response.put_object
def one_by_one(response):
    with lock:
        return put(response)
S3Response.put_object = one_by_one
botocore.auth.SIGNED_HEADERS_BLACKLIST.remove("user-agent")
moto.server.main(sys.argv[1:])
"""
# A user of moto's with a key of its own, who may do what is named.
USER = """import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
iam.create_user(UserName=sys.argv[2])
rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": sys.argv[3:], "Resource": "*"}]}
iam.put_user_policy(UserName=sys.argv[2], PolicyName="p", PolicyDocument=json.dumps(rights))
made = iam.create_access_key(UserName=sys.argv[2])["AccessKey"]
print(made["AccessKeyId"], made["SecretAccessKey"])
"""


# A role that may do what is named, for whoever asks.
ROLE = """import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": sys.argv[3:], "Resource": "*"}]}
print(iam.create_role(RoleName=sys.argv[2], AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"])
iam.put_role_policy(RoleName=sys.argv[2], PolicyName="p", PolicyDocument=json.dumps(rights))
"""
# Keys of a bucket, asked for by one who may.
KEYS = """import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=sys.argv[2], aws_secret_access_key=sys.argv[3])
for page in s3.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=sys.argv[4]):
    for found in page.get("Contents", []):
        print(found["Key"])
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
        self.process = world.start(name, [python, "-c", MOTO, "-H", "127.0.0.1", "-p", port, *flags])

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

    def says(self, program, *args):
        """Words that a program for boto3 prints."""
        done = subprocess.run([os.environ["LAKEWARD_INTEROP_MOTO"], "-c", program, self.endpoint, *args], stdout=subprocess.PIPE, check=True, timeout=60)
        return done.stdout.decode().split()

    def user(self, name, *rights):
        """Key and secret of a new user."""
        return self.says(USER, name, *rights)

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
    # What comes first is a HEAD, whose answer has no body that would tell why; host style is asked for through the server as a proxy.
    for who, flags, done_well, words in [("who may all", (key, secret), True, []),
                                         ("with a wrong secret", (key, "hush-wrong"), False, ["SignatureDoesNotMatch", "s3://lake/signed"]),
                                         ("with a wrong key", ("AKIASTRANGER", secret), False, ["InvalidAccessKeyId", "s3://lake/signed"]),
                                         ("who may only read", (poor, poor_secret), False, ["access is denied", "s3:PutObject", "s3://lake/signed2/"])]:
        warehouse = "s3://lake/signed2" if flags[0] == poor else "s3://lake/signed"
        argv = [world.lakeward(), "quickstart", "--warehouse", warehouse, "--json", f"--s3.endpoint={bucket.endpoint}",
                f"--s3.access-key={flags[0]}", f"--s3.secret-key={flags[1]}"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        said = done.stderr.decode()
        check((done.returncode == 0) == done_well and all(word in said for word in words), f"quickstart of one {who}: {done.returncode}: {said[-1500:]}")
        check(flags[1] not in said + done.stdout.decode(), "a secret shows")
    argv = [world.lakeward(), "quickstart", "--warehouse", "s3://lake/host", "--json", "--s3.endpoint=http://s3.amazonaws.com", "--s3.style=host", f"--s3.access-key={key}", f"--s3.secret-key={secret}"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100, env={**os.environ, "http_proxy": bucket.endpoint})
    check(done.returncode == 0, f"quickstart with the bucket in the host's name: {done.returncode}: {done.stderr.decode()[-1500:]}")
    check(bucket.says(KEYS, key, secret, "host/"), "no object came by that name")


@case("s3-remote-log", "a real 0.9.1 cluster with its remote log in a bucket that looks at signatures and rights: Lakeward, without any key of its own, reads segments that have left the server with the cluster's tokens "
                       "(GetFileSystemSecurityToken, of a role that may only read), each row once; no secret in any log")
def remote_log(world):
    bucket = Bucket(world)
    key, secret = bucket.user("servers", "s3:*", "sts:AssumeRole")
    role, = bucket.says(ROLE, "readers", "s3:GetObject", "s3:ListBucket")
    bucket.verify()
    settings = [f"s3.endpoint: {bucket.endpoint}", "s3.path.style.access: true", "s3.region: us-east-1", f"s3.access-key: {key}", f"s3.secret-key: {secret}",
                f"s3.assumed.role.arn: {role}", f"s3.assumed.role.sts.endpoint: {bucket.endpoint}"]
    c = cluster.up(world, shared=False, settings=[*TINY, *settings], remote="s3://lake/remote")
    client = world.client(c.address, old=True)
    client.ask("create", "r.log", columns=COLUMNS, buckets=2, properties={**CLUSTER_LAKE, "table.log.tiered.local-segments": "1"}, **{"bucket-keys": ["id"]})
    rows = batch(range(3000))
    client.ask("append", "r.log", rows=rows, **{"flush-every": 60})

    def left():
        local = list((c.folder / "data/r").glob("log-*/**/log-*"))
        here = [folder for folder in local if (folder / f"{0:020}.log").exists()]
        return local and not here and [key for key in bucket.says(KEYS, key, secret, "remote/log/r/log-") if key.endswith(".log")]
    segments = until(60, "segments that have left the server", left)
    # Nothing in the environment that could be a key.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {"HOME": str(world.here)}
    found = []

    def tiered():
        found.extend(world.round(c.address, "--log-level", "debug", env=env)[0])
        return sum(r["rows"] for r in found) >= len(rows)
    until(60, "round", tiered)
    said = (world.here / "run.log").read_text()
    check("remote segments are read" in said, f"nothing was read from remote segments: {said[-1500:]}")
    check(secret not in said and "SessionToken" not in said, "a secret shows")
    snapshot_is_ours(world, c, client, "r.log")
    rows_equal(world, c.table("r.log"), rows, skip=3)
    checked = world.says("check", "--server", c.address)
    same([line for line in checked if line["state"] != "ok"], [], "what `check` finds wrong")
    check(any(line["check"] == "remote" and line["on"].startswith("s3://lake/remote") for line in checked), f"the remote folder is not tried: {checked}")
    return f"{len(rows)} rows, {len(segments)} remote segments"
