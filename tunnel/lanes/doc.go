// Package lanes makes one tunnel.Session of several, so that a large transfer
// does not hold up the keystrokes beside it.
//
// Its mental model is a road. A session has one lane, lane 0, on which
// everything starts and everything small stays. Nobody knows at the opening of a
// stream how much it will carry, so that a direction which turns out to carry
// much leaves lane 0 for a further lane, a session with a connection of its own,
// and comes home when it has calmed down. Each such stretch away from home is a
// leg:
//
//	lane 0  ──[bytes][bytes][moved: lane 2]──────────────────[bytes]──end
//	lane 2                    └──(leg: stream 9) bytes bytes bytes end──┘
//
// A stream of the whole session is thus a child stream on lane 0, its home, and
// at times one more child stream for each direction. At home bytes are framed, on
// a leg they are not: they are the child stream's own, without a copy. The end of
// a leg says "home again", and never more: the end of a direction is always the
// end at home. So the reader needs to know nothing in advance. It follows the
// mark that says "moved", reads that leg to its end, and goes on at home. A
// direction has at most one leg that has not been read to its end.
//
// Lanes are made by the end that made lane 0, when they are first needed, and
// dropped after half a minute without a leg, which both ends agree on first. The
// other end asks for them by a mark in the stream that would like to move. While
// no lane can be had a stream stays at home, after a bounded wait, and tries
// again later. So does every stream whose peer knows nothing of lanes: then this
// package is not used at all.
//
// A lane that is parked, waiting for another connection, gets no new legs. A lane
// that dies takes the streams along that have a leg on it, with its error. When
// lane 0 dies all is over.
//
// What this package is not: it spreads no single transfer over several lanes, and
// it gives no bandwidth guarantees. Lanes share the path's capacity as any
// connections do.
//
// Memory is bounded: a stream at home holds no buffer of its own, a leg holds
// what its child stream does, and there are at most two legs to a stream.
package lanes
