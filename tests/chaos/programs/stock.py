"""The application's tables of the writer: the nemesis makes them, and the writer fills them."""

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table

STOCK = Table(
    "chaos_stock",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("level", Integer),
    Column("token", BigInteger),
)

CREATE = """
CREATE TABLE chaos_stock (id integer PRIMARY KEY, level integer NOT NULL, token bigint);
INSERT INTO chaos_stock VALUES (1, 0, NULL);
CREATE TABLE chaos_unfenced (id integer PRIMARY KEY, token bigint NOT NULL);
INSERT INTO chaos_unfenced VALUES (1, 0);
"""

UNFENCED_STATEMENT = "UPDATE chaos_unfenced SET token = :token RETURNING old.token"
