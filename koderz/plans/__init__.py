"""Plans: everything that a run will do, decided and written down before anything is spent."""
