package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const procHeading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// TestListening chooses among listening sockets as the kernel does.
func TestListening(t *testing.T) {
	line := func(local, state string, inode int) string {
		return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %d 1 0 100 0 0 10 0\n", local, state, inode)
	}
	const (
		any4, lo4, eth4 = "00000000:0050", "0100007F:0050", "0101010A:0050"
		any6            = "00000000000000000000000000000000:0050"
		lo6             = "00000000000000000000000001000000:0050"
		mapped          = "0000000000000000FFFF00000100007F:0050"
	)
	four, six := netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("[::1]:80")
	for name, tt := range map[string]struct {
		tcp, tcp6 string
		at        netip.AddrPort
		want      []string
	}{
		"none":                     {"", "", four, nil},
		"other port":               {line("0100007F:0051", "0A", 1), "", four, nil},
		"exact before all":         {line(any4, "0A", 1) + line(lo4, "0A", 2), line(any6, "0A", 3), four, []string{"2"}},
		"exact by mapped address":  {line(any4, "0A", 1), line(mapped, "0A", 3), four, []string{"3"}},
		"IPv4 before IPv6":         {line(any4, "0A", 1), line(any6, "0A", 3), four, []string{"1"}},
		"both families":            {"", line(any6, "0A", 3), four, []string{"3"}},
		"shared":                   {line(lo4, "0A", 1) + line(lo4, "0A", 2), "", four, []string{"1", "2"}},
		"another address":          {line(eth4, "0A", 1), "", four, nil},
		"not listening":            {line(lo4, "01", 1) + line(lo4, "0A", 2), "", four, nil}, // listening sockets come first
		"IPv6":                     {line(lo4, "0A", 1), line(lo6, "0A", 2) + line(any6, "0A", 3), six, []string{"2"}},
		"IPv6 does not reach IPv4": {line(any4, "0A", 1), "", six, nil},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "net"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(proc, "net/tcp"), procHeading+tt.tcp, 0o644)
			write(t, filepath.Join(proc, "net/tcp6"), procHeading+tt.tcp6, 0o644)
			got, err := listening(readListeners(proc), tt.at)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// TestMachineListeners: the kernel's answer is what /proc says.
func TestMachineListeners(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::]:0", "[::1]:0"} {
		at := netip.MustParseAddrPort(addr)
		family := uint8(unix.AF_INET6)
		if at.Addr().Is4() {
			family = unix.AF_INET
		}
		port := stranger(t, addr)
		asked, err := askListeners(family, port)
		if err != nil {
			t.Skipf("SKIPPED: the kernel cannot be asked: %v", err)
		}
		read, err := readListeners("/proc")(family, port)
		if err != nil || len(asked) != 1 || !slices.Equal(asked, read) || asked[0].addr != at.Addr() {
			t.Errorf("%s: %+v, want %+v (%v)", addr, asked, read, err)
		}
	}
	if l, err := askListeners(unix.AF_INET, 1); err != nil || len(l) != 0 {
		t.Errorf("nobody listens: %+v, %v", l, err)
	}
}

// TestDiagnosisFails: an answer that ends with an error is none, and not that nobody listens.
func TestDiagnosisFails(t *testing.T) {
	end := func(n int32) []byte {
		b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+4)
		b[0], b[4] = unix.SizeofNlMsghdr+4, unix.NLMSG_DONE
		return binary.NativeEndian.AppendUint32(b, uint32(n))
	}
	if _, _, err := decodeListeners(end(-int32(unix.ENOENT)), 80); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v, want %v", err, unix.ENOENT)
	}
	if list, over, err := decodeListeners(end(0), 80); len(list) > 0 || !over || err != nil {
		t.Errorf("%v, %v, %v", list, over, err)
	}
}

func FuzzDiagnosis(f *testing.F) {
	m := make([]byte, unix.SizeofNlMsghdr+diagMessageSize)
	m[0], m[4], m[16], m[17], m[21] = byte(len(m)), unix.SOCK_DIAG_BY_FAMILY, unix.AF_INET, stateListen, 80
	f.Add(m)
	f.Add([]byte{16, 0, 0, 0, unix.NLMSG_DONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, _, err := decodeListeners(b, 80)
		for _, l := range list {
			if err == nil && (!l.addr.IsValid() || l.inode == "") {
				t.Errorf("%+v", l)
			}
		}
	})
}

func FuzzListeners(f *testing.F) {
	for _, name := range []string{"tcp", "tcp6"} {
		if b, err := os.ReadFile("/proc/net/" + name); err == nil {
			f.Add(string(b))
		}
	}
	f.Add(procHeading + "0: 0100007F:0050 0 0A 0 0 0 0 0 7\n")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseListeners(strings.NewReader(s), 80)
		for _, l := range list {
			if err == nil && (!l.addr.IsValid() || l.inode == "") {
				t.Errorf("%+v", l)
			}
		}
	})
}
