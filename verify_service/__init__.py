"""The verify service: runs the target, judges drafts, hands features to drafters."""
