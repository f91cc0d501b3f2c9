// Package carrier makes the TLS connections over TCP that transports run on.
//
// The dialing end has a Dialer for one server, the accepting end an Acceptor for one
// listener; what a connection is for is theirs to say who asked for it. From the top, a
// connection is
//
//	tls.Conn      TLS 1.3, mutual
//	below         what the transport puts there, if anything
//	handshake     the accepting end only: takes turns while shaking hands
//	net.TCPConn   with the socket options of sockopt.go
//
// Handshakes after a Dialer's first are resumptions (RFC 8446, 2.2) where the server's
// tickets allow it. They save the signatures and nothing else: for each of them package
// tls checks that the client's certificate chain has not expired and still ends in an
// authority that is trusted now.
//
// Strangers are bounded. At most 1,024 connections of an Acceptor are in their
// handshake, of which as many compute at a time as there are processors; the others
// wait, for their turn or for their client. When three quarters of them wait for their
// clients, one more costs the one its place that has kept us waiting the longest, of those
// whose address has most places. When all places are taken, because we are the slow end, a
// newcomer is sent away with an alert of seven bytes. So is one that has waited two
// seconds for its first turn: a queue longer than clients' patience would have us compute
// for those who have left.
//
// What this package is not: it multiplexes nothing, and it does not say who is welcome.
// Options.TLS does.
package carrier
