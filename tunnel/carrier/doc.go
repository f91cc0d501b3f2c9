// Package carrier makes the TLS connections over TCP that transports run on.
//
// The dialing end has a Dialer for one server, the accepting end a listener from Listen;
// what a connection is for is theirs to say who asked for it. The life of a session on a
// library is a Session. From the top, a connection is
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
// Strangers are bounded. At most 1,024 connections of a listener are in their
// handshake, of which as many compute at a time as there are processors. Three eighths of
// them may wait for a client's first words: one more costs the one that has waited longest
// its place, of those whose address has most. Three eighths may have been answered, or be
// about to: one more costs one its place that has had it for three seconds, or whose
// address has more than its share; else it is sent away, so that in a storm nobody undoes
// what was done for another. The rest wait for their turn. When all places are taken the
// server is the slow end, and a newcomer is sent away with an alert of seven bytes. So is
// one that has waited two seconds for its first turn: it is about to give up.
//
// What this package is not: it multiplexes nothing, and it does not say who is welcome.
// Options.TLS does.
package carrier
