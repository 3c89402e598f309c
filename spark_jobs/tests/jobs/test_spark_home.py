"""SPARK_HOME for local sessions: Spark's files without the archive of pyspark, which has no bytecode."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_spark.jobs.run import spark_home


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a pyspark package with the layout of pip."""
    package = tmp_path / "site-packages" / "pyspark"
    for folder in ("bin", "jars", "python/lib"):
        (package / folder).mkdir(parents=True)
    (package / "bin" / "spark-submit").touch()
    (package / "python" / "lib" / "pyspark.zip").touch()
    return package


def prepared(master: str, environment: dict[str, str]) -> str | None:
    spark_home.prepare(master, environment)
    return environment.get("SPARK_HOME")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local-cluster[2,1,1024]"])
def test_a_session_on_this_machine_has_programs_and_jars_and_no_archive(tmp_path: Path, master: str) -> None:
    home = prepared(master, {"XDG_CACHE_HOME": str(tmp_path)})
    assert home is not None
    assert (Path(home) / "bin" / "spark-submit").is_file()
    assert list((Path(home) / "jars").glob("spark-core_*.jar"))
    assert not (Path(home) / "python").exists()


@pytest.mark.parametrize("master", ["", "yarn", "spark://host:7077", "k8s://https://host"])
def test_a_session_whose_executors_are_elsewhere_is_left_as_it_is(tmp_path: Path, master: str) -> None:
    assert prepared(master, {"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_a_spark_that_somebody_chose_or_that_runs_already_stays(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert prepared("local", {**cache, "SPARK_HOME": "/opt/spark"}) == "/opt/spark"
    assert prepared("local", {**cache, "PYSPARK_GATEWAY_PORT": "4711"}) is None
    assert prepared("local", {**cache, "SPARK_REMOTE": "sc://host"}) is None


def test_without_a_cache_spark_finds_itself(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert prepared("local", {"XDG_CACHE_HOME": str(in_the_way)}) is None


def test_the_folder_of_a_package_stays_and_another_package_has_another(tmp_path: Path, package: Path) -> None:
    home = spark_home.of_package(package, tmp_path / "cache")
    assert spark_home.of_package(package, tmp_path / "cache") == home
    other = package.rename(package.with_name("pyspark-of-another-environment"))
    assert spark_home.of_package(other, tmp_path / "cache") != home


def test_settings_that_come_later_are_found(tmp_path: Path, package: Path) -> None:
    home = spark_home.of_package(package, tmp_path / "cache")
    assert home is not None
    (package / "conf").mkdir()
    (package / "conf" / "spark-defaults.conf").touch()
    assert (home / "conf" / "spark-defaults.conf").is_file()


def test_links_that_lead_elsewhere_are_mended(tmp_path: Path, package: Path) -> None:
    home = spark_home.of_package(package, tmp_path / "cache")
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert spark_home.of_package(package, tmp_path / "cache") == home
    assert (home / "jars").is_dir()
    assert sorted(entry.name for entry in home.iterdir()) == ["bin", "conf", "jars"]


def test_a_package_that_belongs_to_an_unpacked_spark_is_left_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "spark" / "python" / "pyspark"
    package.mkdir(parents=True)
    assert spark_home.of_package(package, tmp_path / "cache") is None
