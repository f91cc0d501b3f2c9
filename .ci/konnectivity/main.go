// Konnectivity measures systems that serve konnectivity's gRPC on a unix socket, beside
// each other: the same load, by konnectivity-client as it is, to a target in this process,
// through one after the other within each round, another one first each time.
//
//	konnectivity certs DIR
//	konnectivity run --json FILE --loads NAME,NAME --rounds N --seconds S NAME,socket=PATH,host=HOST,pid=PID,pid=PID NAME,…
//
// Certs makes a CA and the pairs server and agent. Run prints medians over the rounds, and
// the ratio of each system to the first: the median of the ratios within the rounds. A
// system's processor time is that of its processes; the client's is that of this process,
// which has the client and the target.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == "certs" {
		return makeCerts(args[1])
	}
	if len(args) == 0 || args[0] != "run" {
		return errors.New("usage: konnectivity certs DIR, or konnectivity run [--json FILE] [--loads NAME,NAME] [--rounds N] [--seconds S] SYSTEM SYSTEM")
	}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	file := flags.String("json", "", "where the values of all rounds go")
	rounds := flags.Int("rounds", 3, "how often each load is measured")
	names := flags.String("loads", "", "which loads are measured, divided by commas; all if there is none")
	seconds := flags.Float64("seconds", 1, "how long each time")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var systems []*system
	for _, spec := range flags.Args() {
		s, err := parseSystem(spec)
		if err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
		systems = append(systems, s)
	}
	if len(systems) < 2 || *rounds < 1 || *seconds <= 0 {
		return errors.New("want two systems or more, one round or more, and more than no time")
	}
	picked, err := pick(*names)
	if err != nil {
		return err
	}
	r, err := measure(ctx, systems, picked, *rounds, time.Duration(*seconds*float64(time.Second)))
	if err != nil {
		return err
	}
	if err := r.print(out); err != nil || *file == "" {
		return err
	}
	return r.write(*file)
}

// A system serves konnectivity's gRPC.
type system struct {
	name   string
	socket string // where
	host   string // what it calls this machine's loopback
	pids   []int  // of its processes
}

func parseSystem(spec string) (*system, error) {
	name, rest, _ := strings.Cut(spec, ",")
	s := &system{name: name}
	for field := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "socket":
			s.socket = value
		case "host":
			s.host = value
		case "pid":
			pid, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("pid: %w", err)
			}
			s.pids = append(s.pids, pid)
		default:
			return nil, fmt.Errorf("%q is none of socket=, host= and pid=", field)
		}
	}
	if s.name == "" || s.socket == "" || s.host == "" || len(s.pids) == 0 {
		return nil, errors.New("want NAME,socket=PATH,host=HOST,pid=PID")
	}
	return s, nil
}
