"""All SQL statements of the memory store."""

from __future__ import annotations

APPLICATION_ID = 0x6B6F6472  # "kodr", so that another program's database isn't taken for ours

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE memories (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT,
            title TEXT NOT NULL,
            content TEXT NOT NULL,
            category TEXT NOT NULL,
            type TEXT NOT NULL,
            tags TEXT NOT NULL,
            importance TEXT NOT NULL,
            metadata TEXT NOT NULL,
            project TEXT,
            salience REAL NOT NULL,
            access_count INTEGER NOT NULL,
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL,
            last_accessed TEXT,
            fingerprint INTEGER
        )
        """,
        "CREATE UNIQUE INDEX memories_key ON memories (key) WHERE key IS NOT NULL",
        "CREATE INDEX memories_fingerprint ON memories (fingerprint) WHERE key IS NULL",
        "CREATE TABLE tags (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, n INTEGER NOT NULL)",
        """
        CREATE TABLE memory_tags (
            tag_id INTEGER NOT NULL,
            memory_id INTEGER NOT NULL,
            PRIMARY KEY (tag_id, memory_id)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE VIRTUAL TABLE memory_text USING fts5 (
            title, tags, content, content = '', tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"
        )
        """,
        """
        INSERT INTO memory_text (rowid, title, tags, content)
        SELECT id, title, tag_words(tags), indexed(content) FROM memories
        """,
    ),
    (
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            project TEXT,
            started_at TEXT NOT NULL,
            ended_at TEXT,
            summary TEXT
        )
        """,
        """
        CREATE INDEX memories_lesson ON memories (json_extract(metadata, '$.lesson_cause'), id)
        WHERE json_extract(metadata, '$.lesson_cause') IS NOT NULL
        """,
    ),
    (
        "CREATE TABLE index_mark (last_id INTEGER NOT NULL)",
        "INSERT INTO index_mark SELECT coalesce(max(id), 0) FROM memories",
        # Full text in fewer and larger parts, merged less often, takes 40 % less CPU at a million memories. Parts
        # are merged in small steps where 16 of a size are there, and only where 64 have gathered meanwhile at once.
        "INSERT INTO memory_text (memory_text, rank) VALUES ('hashsize', 8388608)",
        "INSERT INTO memory_text (memory_text, rank) VALUES ('automerge', 16)",
        "INSERT INTO memory_text (memory_text, rank) VALUES ('crisismerge', 64)",
    ),
)
"""The statements that lead from each version of the schema to the next; their number is the latest version."""

COLUMNS = (
    "id, key, title, content, category, type, tags, importance, metadata, project, salience, "
    "access_count, created_at, updated_at, last_accessed"
)

_M = ", ".join(f"m.{name}" for name in COLUMNS.split(", "))

INSERT = (
    f"INSERT INTO memories ({COLUMNS.removeprefix('id, ')}, fingerprint) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
UPDATE = (
    "UPDATE memories SET title = ?, content = ?, category = ?, type = ?, tags = ?, importance = ?, metadata = ?, "
    "project = ?, salience = ?, created_at = ?, updated_at = ? WHERE id = ?"
)
DELETE = "DELETE FROM memories WHERE id = ?"
BY_KEY = f"SELECT {COLUMNS} FROM memories WHERE key = ?"
BY_ID = f"SELECT {COLUMNS} FROM memories WHERE id = ?"
BY_FINGERPRINT = "SELECT id FROM memories WHERE key IS NULL AND fingerprint = ? LIMIT 1"
LAST_ID = "SELECT coalesce(max(id), 0) FROM memories"
TOUCH = "UPDATE memories SET access_count = access_count + 1, last_accessed = ? WHERE id = ?"

INDEX_TEXT = "INSERT INTO memory_text (rowid, title, tags, content) VALUES (?, ?, ?, ?)"
UNINDEX_TEXT = "INSERT INTO memory_text (memory_text, rowid, title, tags, content) VALUES ('delete', ?, ?, ?, ?)"
INDEX_NEWER = (
    "INSERT INTO memory_text (rowid, title, tags, content) SELECT id, title, tag_words(tags), indexed(content) "
    "FROM memories WHERE id > (SELECT last_id FROM index_mark) ORDER BY id"
)
UNINDEXED_TAGS = "SELECT id, tags FROM memories WHERE id > (SELECT last_id FROM index_mark) ORDER BY id"
INDEX_MARK = "SELECT last_id FROM index_mark"
MOVE_MARK = "UPDATE index_mark SET last_id = max(last_id, (SELECT coalesce(max(id), 0) FROM memories))"
IS_BEHIND = "SELECT 1 FROM memories WHERE id > (SELECT last_id FROM index_mark) LIMIT 1"
OPTIMIZE_TEXT = "INSERT INTO memory_text (memory_text) VALUES ('optimize')"

NEW_TAG = "INSERT INTO tags (name, n) VALUES (?, ?)"
TAG = "SELECT id, n FROM tags WHERE name = ?"
COUNT_TAG = "UPDATE tags SET n = n + ? WHERE id = ?"
DROP_TAG = "DELETE FROM tags WHERE id = ? AND n = 0"
LINK = "INSERT INTO memory_tags (tag_id, memory_id) VALUES (?, ?)"
UNLINK = "DELETE FROM memory_tags WHERE tag_id = ? AND memory_id = ?"
CHECKS = {
    "tags are miscounted": (
        "SELECT count(*) FROM tags WHERE n != (SELECT count(*) FROM memory_tags WHERE tag_id = tags.id)"
    ),
    "tags of memories don't lead to them": (
        "SELECT count(*) FROM memories m, json_each(m.tags) j WHERE m.id <= (SELECT last_id FROM index_mark) "
        "AND NOT EXISTS (SELECT 1 FROM tags g "
        "JOIN memory_tags t ON t.tag_id = g.id WHERE g.name = j.value AND t.memory_id = m.id)"
    ),
    "memories are not in full text, or are there before their time": (
        "SELECT count(*) FROM memories m WHERE (id <= (SELECT last_id FROM index_mark)) "
        "!= EXISTS (SELECT 1 FROM memory_text_docsize d WHERE d.id = m.id)"
    ),
}
"""Queries that count each kind of damage; each gives 0 in a sound store."""

TOTALS = (
    "SELECT count(*), min(created_at), max(created_at), avg(salience) FROM memories WHERE ?1 IS NULL OR project = ?1"
)
COUNTS = "SELECT {column}, count(*) FROM memories WHERE ?1 IS NULL OR project = ?1 GROUP BY 1 ORDER BY 2 DESC, 1"
COMMON_TAGS = "SELECT name, n FROM tags ORDER BY n DESC, name LIMIT 20"
TAG_TOTAL = "SELECT count(*) FROM tags"
DUPLICATES = (
    "SELECT group_concat(id) FROM memories WHERE key IS NULL "
    "GROUP BY title, content, category, project HAVING count(*) > 1 ORDER BY min(id)"
)
START_SESSION = "INSERT INTO sessions (project, started_at) VALUES (?, ?)"
END_SESSION = "UPDATE sessions SET ended_at = ?, summary = coalesce(?, summary) WHERE id = ?"
SESSION = "SELECT project, started_at FROM sessions WHERE id = ?"

HITS = "SELECT count(*) FROM (SELECT 1 FROM memory_text WHERE memory_text MATCH ? LIMIT ?)"
NEWEST_HITS = (
    f"SELECT {_M} FROM (SELECT rowid AS id FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?) n "
    "CROSS JOIN memories m ON m.id = n.id WHERE 1 {filters}"
)
RELEVANT = (
    f"SELECT {_M}, bm25(memory_text, 4.0, 2.0, 1.0) AS relevance "
    "FROM memory_text CROSS JOIN memories m ON m.id = memory_text.rowid "
    "WHERE memory_text MATCH ? {filters} ORDER BY relevance LIMIT ?"
)
UNINDEXED = f"SELECT {_M} FROM memories m WHERE m.id > (SELECT last_id FROM index_mark) {{filters}} ORDER BY m.id"
LESSONS = (
    f"SELECT {COLUMNS} FROM memories "
    "WHERE json_extract(metadata, '$.lesson_cause') = ?1 AND json_extract(metadata, '$.lesson_cause') IS NOT NULL "
    "AND id <= ?2 AND updated_at <= ?3 AND (json_extract(metadata, '$.problem_id') = ?4) = ?5 "
    "AND json_extract(metadata, '$.simulated') = ?6 ORDER BY id DESC LIMIT ?7"
)


def select(tags: int, filters: str, *, newest_first: bool) -> str:
    """A query for memories with all of several tags; the tag ids are the first parameters, the rarest first.

    The planner neither knows the counts nor reorders by them, so the order is laid down: one walk over the
    rarest tag, and a look-up for each other one. `limit` is the last parameter; -1 means none.
    """
    source = "memories m"
    conditions = ["1"]
    if tags:
        source = "memory_tags t CROSS JOIN memories m ON m.id = t.memory_id"
        others = "EXISTS (SELECT 1 FROM memory_tags o WHERE o.tag_id = ? AND o.memory_id = t.memory_id)"
        conditions = ["t.tag_id = ?", *[others] * (tags - 1)]
    order = "t.memory_id" if tags else "m.id"
    direction = "DESC" if newest_first else "ASC"
    return f"SELECT {_M} FROM {source} WHERE {' AND '.join(conditions)} {filters} ORDER BY {order} {direction} LIMIT ?"
