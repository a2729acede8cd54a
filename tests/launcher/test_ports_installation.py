import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from launcher import installation
from launcher.local import remove_abandoned_shared_memory
from launcher.ports import is_free, pick_free, require_free
from trtforge.ground.errors import EnvironmentLacks, ForgeError


def test_a_taken_port_is_refused_with_one_that_is_free():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        with pytest.raises(ForgeError) as caught:
            require_free("127.0.0.1", {"http": port})
    assert caught.value.code == "TF-LCH-001"
    assert caught.value.numbers == {"http": port}
    suggested = int(caught.value.remedies[0].split()[-1])
    assert suggested != port


def test_picked_ports_are_different():
    ports = pick_free("127.0.0.1", 5)
    assert len(set(ports)) == 5


def test_numpy_2_is_refused_for_servers_built_against_numpy_1(monkeypatch):
    monkeypatch.setattr(installation.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(EnvironmentLacks) as caught:
        installation.check_numpy("2.51.0")
    assert caught.value.code == "TF-ENV-023"
    assert caught.value.exit_code == 3
    installation.check_numpy("2.73.0")
    monkeypatch.setattr(installation.metadata, "version", lambda name: "1.26.4")
    installation.check_numpy("2.51.0")


def test_a_machine_without_a_server_says_what_to_install(monkeypatch):
    def missing(name):
        raise installation.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.shutil, "which", lambda name: None)
    monkeypatch.setattr(installation.metadata, "version", missing)
    with pytest.raises(EnvironmentLacks) as caught:
        installation.find_installation()
    assert caught.value.code == "TF-ENV-021"
    assert "nvidia-pytriton" in caught.value.remedies[0]


def test_shared_memory_of_dead_launchers_is_removed_and_others_are_left(tmp_path):
    """Process ids say nothing where containers share the folder: a lock that nobody holds does."""
    names = ("trtforge_4194399_80_", "trtforge_1_81_", f"trtforge_{os.getpid()}_82_")
    dead, other_namespace, unmarked = (tmp_path / f"{name}region" for name in names)
    for region in (dead, other_namespace, unmarked, tmp_path / "x"):
        region.touch()
    for name in names[:2]:
        (tmp_path / f"{name}lock").touch()
    holds = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", holds, str(tmp_path / f"{names[1]}lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        holder.stdout.readline()
        remove_abandoned_shared_memory(tmp_path)
        assert not list(tmp_path.glob(f"{names[0]}*"))
        assert [path.exists() for path in (other_namespace, unmarked, tmp_path / "x")] == [True, True, True]
    finally:
        holder.kill()
        holder.wait()
    remove_abandoned_shared_memory(tmp_path)
    assert not list(tmp_path.glob(f"{names[1]}*"))
    assert unmarked.exists()


def test_a_server_on_path_comes_first(monkeypatch):
    monkeypatch.setattr(installation.shutil, "which", lambda name: "/opt/tritonserver/bin/tritonserver")
    found = installation.find_installation()
    assert found.kind == "path"
    assert found.backend_directory is None


def test_a_missing_libpython_names_its_package(monkeypatch):
    monkeypatch.setattr(installation.sysconfig, "get_config_var", lambda name: "/nonexistent")
    monkeypatch.setattr(installation.sys, "base_prefix", "/nonexistent")
    with pytest.raises(EnvironmentLacks) as caught:
        installation.find_libpython("3.99")
    assert caught.value.code == "TF-ENV-022"
    assert "libpython3.99" in caught.value.remedies[0]


def test_environments_whose_wheels_differ_share_no_copy_of_the_server(monkeypatch, tmp_path):
    """One environment's server runs from its copy while the other's is made."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)
    monkeypatch.setattr(installation.metadata, "version", lambda name: "0.7.0" if "pytriton" in name else "1.26.4")
    monkeypatch.setattr(installation, "find_libpython", lambda python: "")
    found = []
    for name in ("one", "other", "one"):
        carried = tmp_path / name / "pytriton" / "tritonserver"
        for file in ("bin/tritonserver", f"python_backend_stubs/{python}/triton_python_backend_stub",
                     "backends/python/libtriton_python.so", "caches/local/libtritoncache_local.so"):  # fmt: skip
            (carried / file).parent.mkdir(parents=True, exist_ok=True)
            (carried / file).write_text(name)
        here = SimpleNamespace(locate_file=lambda path, name=name: tmp_path / name / path)
        monkeypatch.setattr(installation.metadata, "distribution", lambda name, here=here: here)
        found.append(installation.find_installation().backend_directory)
    assert found[0] == found[2] != found[1]
    for folder, name in zip(found[:2], ("one", "other"), strict=True):
        assert (folder / "python" / "libtriton_python.so").read_text() == name
        assert (folder / "python" / "triton_python_backend_stub").read_text() == name
