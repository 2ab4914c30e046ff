"""Generated from protos/dspark/wire/v1 by `make protos`; do not edit."""
