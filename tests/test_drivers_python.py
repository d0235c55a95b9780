"""psycopg 3, psycopg2, SQLAlchemy and Django's ORM, on a plain server and through the router."""

import pytest

from support.drivers import python_program

PSYCOPG3 = python_program("psycopg3.py")
PSYCOPG3_PROTOCOL = python_program("psycopg3_protocol.py")
PSYCOPG2 = python_program("psycopg2_alone.py")
SQLALCHEMY = python_program("sqlalchemy_shop.py")
DJANGO = python_program("django_shop.py")


@pytest.mark.parametrize("way, check", PSYCOPG3.cases())
def test_psycopg3(drivers, way, check):
    drivers.judge(PSYCOPG3, way, check)


@pytest.mark.parametrize("way, check", PSYCOPG3_PROTOCOL.cases())
def test_psycopg3_protocol(drivers, way, check):
    drivers.judge(PSYCOPG3_PROTOCOL, way, check)


@pytest.mark.parametrize("way, check", PSYCOPG2.cases())
def test_psycopg2(drivers, way, check):
    drivers.judge(PSYCOPG2, way, check)


@pytest.mark.parametrize("way, check", SQLALCHEMY.cases())
def test_sqlalchemy(drivers, way, check):
    drivers.judge(SQLALCHEMY, way, check)


@pytest.mark.parametrize("way, check", DJANGO.cases())
def test_django(drivers, way, check):
    drivers.judge(DJANGO, way, check)
