@0xe3a5c1d97b2f4860;
# Version 1 of the schema: Queueber's, from before there were tenants. Everything in it concerns default/default.
#
# Numbers of fields and methods, and the ID of the interface, are Queueber's: they are what its clients send.
# Times are in seconds. This schema is frozen; version 2 is tenantq.capnp.

using Current = import "tenantq.capnp";

struct Item {
  contents @0 :Data;
  visibilityTimeoutSecs @1 :UInt64;  # delay
}

struct AddRequest {
  items @0 :List(Item);
}

struct AddResponse {
  ids @0 :List(Data);                # 16 bytes each
}

struct RemoveRequest {
  id @0 :Data;
  lease @1 :Data;
}

struct RemoveResponse {
  removed @0 :Bool;                  # false: the lease does not hold this item any more
}

struct PollRequest {
  leaseValiditySecs @0 :UInt64;
  numItems @1 :UInt32;               # 0 means 1
  timeoutSecs @2 :UInt64;            # 0 means as long as the server waits
}

struct PolledItem {
  contents @0 :Data;
  id @1 :Data;
}

struct PollResponse {
  items @0 :List(PolledItem);
  lease @1 :Data;                    # 16 bytes, for all items of the reply
}

struct ExtendRequest {
  lease @0 :Data;
  leaseValiditySecs @1 :UInt64;      # from now
}

struct ExtendResponse {
  extended @0 :Bool;
}

interface Queue @0x8323a518d3254563 {
  add @0 (req :AddRequest) -> (resp :AddResponse);
  remove @1 (req :RemoveRequest) -> (resp :RemoveResponse);
  poll @2 (req :PollRequest) -> (resp :PollResponse);
  extend @3 (req :ExtendRequest) -> (resp :ExtendResponse);
}

interface Bootstrap extends(Current.Tenantq, Queue) {}
# What a connection starts with: clients of both versions find their interface in it.
