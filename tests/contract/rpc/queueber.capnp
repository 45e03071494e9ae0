@0xbab6e22de0402699;
# The schema of a Queueber client: the structures of its schema document, and the interface its server offered.

struct Item {
  contents @0 :Data;
  visibilityTimeoutSecs @1 :UInt64;
}

struct PolledItem {
  contents @0 :Data;
  id @1 :Data;
}

struct AddRequest { items @0 :List(Item); }
struct AddResponse { ids @0 :List(Data); }

struct RemoveRequest {
  id @0 :Data;
  lease @1 :Data;
}
struct RemoveResponse { removed @0 :Bool; }

struct PollRequest {
  leaseValiditySecs @0 :UInt64;
  numItems @1 :UInt32;
  timeoutSecs @2 :UInt64;
}
struct PollResponse {
  items @0 :List(PolledItem);
  lease @1 :Data;
}

struct ExtendRequest {
  lease @0 :Data;
  leaseValiditySecs @1 :UInt64;
}
struct ExtendResponse { extended @0 :Bool; }

interface Queue {
  add @0 (req :AddRequest) -> (resp :AddResponse);
  remove @1 (req :RemoveRequest) -> (resp :RemoveResponse);
  poll @2 (req :PollRequest) -> (resp :PollResponse);
  extend @3 (req :ExtendRequest) -> (resp :ExtendResponse);
}
