package node

import "testing"

func TestRealMachine(t *testing.T) {
	m := &machine{root: "/", dataDir: t.TempDir()}
	f, err := m.read("")
	if err != nil {
		t.Fatal(err)
	}
	if f.cpus < 1 || f.memory < 1<<20 || f.available <= 0 || f.available > f.memory || f.nodefs.size <= 0 || f.nodefs.free > f.nodefs.size || f.imagefs != f.nodefs || f.pids <= f.pidsUsed || f.kernel == "" || f.bootID == "" {
		t.Errorf("facts %+v", f)
	}
	if _, err := (&machine{root: t.TempDir(), dataDir: "/nonexistent"}).read(""); err == nil {
		t.Error("a machine without /proc and data directory has facts")
	}
}

func TestDefaultInterface(t *testing.T) {
	const v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	for _, tt := range []struct{ name, route, route6, want string }{
		{"one", v4 + "eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", "", "eth0"},
		{"least metric", v4 + "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\neth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n", "", "eth0"},
		{"no default", v4 + "eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n", "", ""},
		{"IPv6", v4, "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth1\n" +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n", "eth1"},
		{"nothing", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &machine{root: t.TempDir()}
			write(t, m.path("proc/net/route"), tt.route)
			write(t, m.path("proc/net/ipv6_route"), tt.route6)
			got, err := m.defaultInterface()
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
