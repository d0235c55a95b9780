# Interlock: the top Makefile only calls the parts. `make help` lists what there is.
#
#   PREFIX     where `make install` puts the router's binary (default /usr/local)
#   PG_CONFIG  the pg_config of the PostgreSQL that gets the extension
#   PURGE=1    with `make down`: delete the local cluster's data as well

PREFIX    ?= /usr/local
PG_CONFIG ?= $(shell scripts/pg_config)
PYTHON    := /usr/bin/python3
export PG_CONFIG

# Installing into a folder that is not ours takes sudo; as root, or into a folder of ours, it does not.
sudo_for = $(shell test -w $(1) || test "$$(id -u)" = 0 || echo sudo)

# `up` builds on all cores unless told otherwise (make -j4 up).
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: all help deps deps-test extension router install install-extension install-router \
        up down check installcheck bench clean

all: extension router

help:
	@echo 'make deps          install the Debian packages that are missing (root or sudo)'
	@echo 'make [all]         build the extension and the router'
	@echo 'make install       install the extension for $$(PG_CONFIG), the router into $$(PREFIX)/bin'
	@echo 'make up            all of that, then a local two-shard cluster under ./var and a short tour'
	@echo 'make down          stop the local cluster; PURGE=1 deletes its data too'
	@echo 'make check         everything the project tests; the last line counts passed and failed'
	@echo 'make installcheck  pg_regress alone: on the server PGHOST/PGPORT name, or on one of its own'
	@echo 'make bench         measurements, as ratios within one run; QUICK=1 shortens them'
	@echo 'make clean         remove what was built (not the local cluster)'

deps:
	@scripts/deps run

deps-test:
	@scripts/deps run test

extension:
	$(MAKE) -C extension

router:
	$(MAKE) -C router

install: install-extension install-router

install-extension: extension
	$(call sudo_for,"$$($(PG_CONFIG) --pkglibdir)") $(MAKE) -C extension install PG_CONFIG=$(PG_CONFIG)

install-router: router
	$(call sudo_for,$(PREFIX)) install -D -m 755 build/interlock $(DESTDIR)$(PREFIX)/bin/interlock

# PG_CONFIG may only exist once deps has run, so the rest is a make of its own.
up: deps
	@$(MAKE) --no-print-directory -s $(JOBS) all
	@$(MAKE) --no-print-directory -s install-extension
	@$(PYTHON) scripts/cluster up

down:
	@$(PYTHON) scripts/cluster down $(if $(PURGE),--purge)

check:
	@scripts/check

installcheck: install-extension
ifneq ($(PGHOST)$(PGPORT),)
	$(MAKE) -C extension installcheck
else
	$(PYTHON) -m pytest -q tests/test_regress.py
endif

bench: all install-extension
	@$(PYTHON) tests/bench/run.py $(if $(QUICK),--quick)

clean:
	-$(MAKE) -C extension clean
	-$(MAKE) -C router clean
	rm -rf build
