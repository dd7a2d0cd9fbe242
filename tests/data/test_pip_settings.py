"""We look for packages where the user's pip does."""

import os

from regard.data.origins.pypi import PipSettings, environment_listing, parse_pip_settings, read_pip_settings


def test_sections_replace_one_another_as_in_pip():
    listing = (
        ":env:.find-links='/from/environment'\n"
        "global.find-links='/from/global'\n"
        "global.index-url='https://one.example/simple'\n"
        "download.index-url='https://two.example/simple'\n"
        "freeze.index-url='https://three.example/simple'\n"
    )
    settings = parse_pip_settings(listing)
    assert settings.find_links == ("/from/environment",)
    assert settings.index_url == "https://two.example/simple"


def test_lists_and_the_rest():
    listing = (
        "global.extra-index-url='\\nhttps://a.example/simple\\nhttps://b.example/simple'\n"
        "global.find-links='~/wheels /more'\nglobal.no-index='true'\n"
        "global.trusted-host='a.example b.example:81'\n"
        "global.cert='/certificates.pem'\nglobal.proxy='http://proxy.example:3128'\nglobal.timeout='7'\nnonsense\n"
    )
    assert parse_pip_settings(listing) == PipSettings(
        extra_index_urls=("https://a.example/simple", "https://b.example/simple"),
        find_links=(os.path.expanduser("~/wheels"), "/more"),
        no_index=True,
        trusted_hosts=("a.example", "b.example:81"),
        cert="/certificates.pem",
        proxy="http://proxy.example:3128",
        timeout=7.0,
    )


def test_nothing_configured():
    assert parse_pip_settings("") == PipSettings()


def test_the_real_pip_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[global]\nindex-url = https://mirror.example/simple\nfind-links =\n    /one\n    /two\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://extra.example/simple")
    settings = read_pip_settings()
    assert settings.index_url == "https://mirror.example/simple"
    assert settings.find_links == ("/one", "/two")
    assert settings.extra_index_urls == ("https://extra.example/simple",)


def test_without_pip_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://it's.example/simple")
    assert parse_pip_settings(environment_listing()).index_url == "https://it's.example/simple"
