@0xd1f0a6c2b8e94735;
# The values of a Queueber store, as its schema document describes them.

struct StoredItem {
  contents @0 :Data;
  visibilityTsIndexKey @1 :Data;
  id @2 :Data;
}

struct LeaseEntry {
  ids @0 :List(Data);
  expiryTsSecs @1 :UInt64;
  expiryTsIndexKey @2 :Data;
}
