// What a server listens on, and whom it connects to: nothing but itself.

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A socket is a TCP socket of a process, with its ports and the address of the other end.
type socket struct {
	listens   bool
	near, far int
	to        string // in hexadecimal, as in /proc/net/tcp
}

// sockets reads the TCP sockets of a process that listen or are connected.
func sockets(t *testing.T, pid int) (all []socket) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", pid)
	files, err := os.ReadDir(proc + "/fd")
	must(t, err)
	own := map[string]bool{}
	for _, file := range files {
		// It may have been closed meanwhile.
		if to, err := os.Readlink(filepath.Join(proc, "fd", file.Name())); err == nil {
			own[to] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "net", table))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			// Columns 2 and 3 of a row are the addresses, in hexadecimal; 4 is the state, of
			// which 01 is established and 0A listens; 10 is the inode.
			row := strings.Fields(line)
			if len(row) < 10 || !own["socket:["+row[9]+"]"] || row[3] != "01" && row[3] != "0A" {
				continue
			}
			_, near, _ := strings.Cut(row[1], ":")
			to, far, _ := strings.Cut(row[2], ":")
			s := socket{listens: row[3] == "0A", to: to}
			for hex, port := range map[*int]string{&s.near: near, &s.far: far} {
				n, err := strconv.ParseUint(port, 16, 16)
				must(t, err)
				*hex = int(n)
			}
			all = append(all, s)
		}
	}
	return all
}

// hubAndSpoke: the server listens on the ports of its flags, speaks plain HTTP on none of
// them, and has opened no connection but to itself.
func (c *cluster) hubAndSpoke(t *testing.T) {
	t.Helper()
	var listens []int
	all := sockets(t, c.pid(t, "server"))
	for _, s := range all {
		if s.listens {
			listens = append(listens, s.near)
		}
	}
	slices.Sort(listens)
	listens = slices.Compact(listens)
	known := []int{c.port}
	for _, arg := range c.cmdline(t, "server") {
		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasSuffix(flag, "-port") {
			n, err := strconv.Atoi(value)
			must(t, err)
			if n != 0 {
				known = append(known, n)
			}
		}
	}
	slices.Sort(known)
	if known = slices.Compact(known); !slices.Equal(listens, known) {
		t.Errorf("the server listens on the ports %v; its flags have %v", listens, known)
	}
	for _, port := range listens {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			continue
		}
		_ = resp.Body.Close() // the status is what counts
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("port %d answers plain HTTP: %s", port, resp.Status)
		}
	}
	for _, s := range all {
		if !s.listens && !slices.Contains(listens, s.near) && !slices.Contains(listens, s.far) {
			t.Errorf("the server has connected to port %d of %s", s.far, s.to)
		}
	}
}
