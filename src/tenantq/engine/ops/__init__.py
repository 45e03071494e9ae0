"""The operations, a file each; every one puts its effects into a round."""
