// Package carrier carries sessions over TLS and TCP: all that the transports
// have in common which multiplex one connection.
//
// The mental model: a transport is a multiplexer with a name, a Protocol. The
// carrier brings it a Pipe, a net.Conn that is authenticated at both ends, and a
// transport is whatever it makes of that. Below the pipe lie, from the top,
//
//	link.Link     outlives what is below it, joins small writes
//	tls.Conn      TLS 1.3, mutual
//	link.Batch    several TLS records, one system call
//	guest         the accepting end only: takes turns while shaking hands
//	net.TCPConn   with the socket options of sockopt.go
//
// Whether there is a link is agreed on in the handshake: each protocol has two
// ALPN names, of which that with the suffix "+link" is preferred. An end that has
// no links, or wants none (a negative detach window), offers only the other one;
// then the session ends with its connection, and the other end says so in its
// log.
//
// When a connection is lost the dialing end's link makes another one the way the
// first was made, proxy and all, and the accepting end's registry finds the link
// that it belongs to: by a secret, and by the subject of the client's
// certificate, which is what stays when a node renews its certificate and its
// key. Handshakes after the first are resumptions (RFC 8446, 2.2) where the
// server's tickets allow it. They save the signatures and nothing else: for each
// of them package tls checks that the client's certificate chain has not expired
// and still ends in an authority that is trusted now.
//
// Strangers are bounded. At most 1,024 connections of a listener are in their
// handshake, of which as many compute at a time as there are processors; the
// others wait, for their turn or for their client. When all places are taken, a
// newcomer costs the one its place that has kept us waiting the longest, of those
// whose address has most places; if nobody has, because we are the slow end, the
// newcomer is sent away with an alert of seven bytes. So it is, whatever the places,
// once somebody has waited two seconds for a turn: a queue longer than clients'
// patience would have us compute for those who have left.
//
// What this package is not: it multiplexes nothing, and it does not say who is
// welcome. Options.TLS says who gets a session, and LinkOptions.Resume whose
// session may go on.
package carrier
