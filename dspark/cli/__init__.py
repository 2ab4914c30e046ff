"""The dspark command. Only this package may import the rooms, and only lazily."""
