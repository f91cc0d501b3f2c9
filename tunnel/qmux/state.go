// The states of a stream's two parts (RFC 9000, section 3), and all transitions between them. No
// other file sets a state.

package qmux

// A sendState is the state of a sending part (RFC 9000, 3.1).
type sendState uint8

const (
	sendOpen sendState = iota // Ready and Send
	sendDataSent
	sendDataRecvd
	sendResetSent
	sendResetRecvd
)

// finSent goes from Send to Data Sent.
func (o *sending) finSent() { o.state = sendDataSent }

// finLost goes from Data Sent back to Send, if the connection that carried FIN is lost: FIN is sent
// again like data.
func (o *sending) finLost() {
	if o.state == sendDataSent {
		o.state = sendOpen
	}
}

// dataAcked goes to Data Recvd. FIN was sent, but may be lost.
func (o *sending) dataAcked() { o.state = sendDataRecvd }

// resetSent goes to Reset Sent, unless the peer has everything or the part was reset before.
func (o *sending) resetSent(code uint64) bool {
	if o.state >= sendDataRecvd {
		return false
	}
	o.state, o.code = sendResetSent, code
	return true
}

// resetAcked goes from Reset Sent to Reset Recvd. It has no effect in other states.
func (o *sending) resetAcked() {
	if o.state == sendResetSent {
		o.state = sendResetRecvd
	}
}

// A recvState is the state of a receiving part (RFC 9000, 3.2).
type recvState uint8

const (
	recvOpen       recvState = iota // Recv
	recvSizeKnown                   // Size Known: FIN was received, and data before it is missing
	recvDataRecvd                   // all data was received
	recvDataRead                    // and read
	recvResetRecvd                  // RESET_STREAM was received
	recvResetRead                   // and reported to the reader
)

// finReceived goes from Recv to Size Known.
func (in *receiving) finReceived(size uint64) { in.state, in.final = recvSizeKnown, size }

// allReceived goes from Size Known to Data Recvd, if no data is missing.
func (in *receiving) allReceived() bool {
	if in.state != recvSizeKnown || in.next != in.final {
		return false
	}
	in.state = recvDataRecvd
	return true
}

// resetReceived goes from Recv or Size Known to Reset Recvd.
func (in *receiving) resetReceived(size uint64) bool {
	if in.state >= recvDataRecvd {
		return false
	}
	in.state, in.final = recvResetRecvd, size
	return true
}

// dataRead goes from Data Recvd to Data Read.
func (in *receiving) dataRead() { in.state = recvDataRead }

// resetRead goes from Reset Recvd to Reset Read.
func (in *receiving) resetRead() { in.state = recvResetRead }
