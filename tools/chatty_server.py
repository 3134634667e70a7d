"""A server of this build with the embedded model under the name `chatty`, which has a chat template of its own."""
import pathlib
import subprocess


def start(program, folder, *more):
    """Starts `program` with its files in `folder` and further options.
    @return the process, its address and the model's folder, when it is ready"""
    model = folder / "chatty"
    model.mkdir()
    source = pathlib.Path(__file__).resolve().parent.parent / "resources/models/nosa-tiny"
    for file in source.iterdir():
        (model / file.name).symlink_to(file)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    costs = folder / "costs.json"
    costs.write_bytes(subprocess.run([program, "simulate", "--print-costs"], check=True, capture_output=True).stdout)
    server = subprocess.Popen([program, "serve", "--port", "0", "--model", model, "--costs", costs, "--threads", "1",
                               "--host-kv", "256M", "--device-kv", "64M", "--scratch", "64M", *more],
                              stdout=subprocess.PIPE, text=True)
    address = server.stdout.readline().split()[-1]
    assert server.stdout.readline().startswith("ready"), "the server is not ready"
    return server, address, model
