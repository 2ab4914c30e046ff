"""Load against a served model: who asks, when, what came back when, and what that says. Behind
`dspark bench`."""
