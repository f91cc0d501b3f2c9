package peers

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/server"
)

// TestMessagesAreShort: whatever agents have said when they left, a message about as many of
// them as there may be in one is shorter than what another server reads. JSON needs six
// bytes for some of one.
func TestMessagesAreShort(t *testing.T) {
	o := server.Observation{Node: strings.Repeat("n", 253), Connected: time.Now(), Instance: math.MaxUint64, Window: time.Hour, RTT: time.Hour, Parks: math.MaxUint64, Resumes: math.MaxUint64}
	o.Change = server.Change{
		Number: math.MaxUint64, At: time.Now(), State: server.Detached, Cause: server.Drained, Err: strings.Repeat("\x01", 512), Heard: time.Now(),
		Session: math.MaxUint64, Transport: "yamux", Addr: netip.AddrPortFrom(netip.MustParseAddr("2001:db8:1111:1111:1111:1111:1111:1111%eth0"), math.MaxUint16).String(),
	}
	for range 16 {
		o.Changes, o.Superseded = append(o.Changes, o.Change), append(o.Superseded, math.MaxUint64)
	}
	var m message
	for i := range batch {
		o.Node = fmt.Sprint(i, o.Node)[:253]
		m.Nodes = append(m.Nodes, o)
	}
	line, err := json.Marshal(m)
	if err != nil || len(line) >= maxLine {
		t.Errorf("a message has %d bytes, and %d are read: %v", len(line), maxLine, err)
	}
}
