// The commands that can be answered without a process.

package fakeruntime

import (
	"path"
	"strconv"
	"strings"
	"time"
)

// commands are those known, for people.
const commands = "cat, date, echo, env, exit, false, hostname, sh -c, sleep, true"

// maxSleep bounds one sleep; longer ones are as good as for ever.
const maxSleep = 100 * 365 * 24 * time.Hour

// A performance is what a command would do.
type performance struct {
	known  bool
	output string
	copies bool // its input to its output
	lasts  time.Duration
	code   int
}

// plan says what argv would do with env (KEY=VALUE) around it.
func plan(argv, env []string) performance {
	if len(argv) == 0 {
		return performance{}
	}
	args := argv[1:]
	ok := performance{known: true}
	switch path.Base(argv[0]) {
	case "true", ":":
	case "false":
		ok.code = 1
	case "echo":
		ok.output = strings.Join(args, " ") + "\n"
	case "env", "printenv":
		ok.output = strings.Join(env, "\n") + "\n"
	case "hostname":
		ok.output = value(env, "HOSTNAME") + "\n"
	case "date":
		ok.output = time.Now().UTC().Format(time.UnixDate) + "\n"
	case "cat":
		ok.copies, ok.known = true, len(args) == 0
	case "sleep":
		ok.lasts, ok.known = sleepTime(args)
	case "exit":
		ok.code, ok.known = exitCode(args)
	case "sh", "bash", "ash", "dash":
		if len(args) < 2 || args[0] != "-c" {
			return performance{}
		}
		return script(args[1], env)
	default:
		return performance{}
	}
	return ok
}

// script does commands that are joined by ; or &&. Quotes around words are taken
// away; there is nothing else of a shell, and a script with more is not known.
func script(text string, env []string) performance {
	whole := performance{known: true}
	if strings.ContainsAny(text, "|<>$`()*?&\\\n{}") && !onlyAnd(text) {
		return performance{}
	}
	for line := range strings.SplitSeq(text, ";") {
		for i, one := range strings.Split(line, "&&") {
			words := strings.Fields(one)
			if len(words) == 0 {
				continue
			}
			for w := range words {
				words[w] = strings.Trim(words[w], `"'`)
			}
			if i > 0 && whole.code != 0 {
				break
			}
			p := plan(words, env)
			if !p.known {
				return performance{}
			}
			whole.output += p.output
			whole.copies = whole.copies || p.copies
			whole.lasts = min(whole.lasts+p.lasts, maxSleep)
			whole.code = p.code
			if words[0] == "exit" {
				return whole
			}
		}
	}
	return whole
}

// onlyAnd tells whether && is all that makes text special.
func onlyAnd(text string) bool {
	return !strings.ContainsAny(strings.ReplaceAll(text, "&&", ""), "|<>$`()*?&\\\n{}")
}

func value(env []string, key string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, key+"="); ok {
			return v
		}
	}
	return ""
}

// sleepTime reads the argument of sleep: seconds, or a number with s, m, h or d.
func sleepTime(args []string) (time.Duration, bool) {
	if len(args) != 1 {
		return 0, false
	}
	unit, number := time.Second, args[0]
	for suffix, d := range map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			unit, number = d, n
			break
		}
	}
	if number == "inf" || number == "infinity" {
		return maxSleep, true
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0) {
		return 0, false
	}
	if n > float64(maxSleep)/float64(unit) {
		return maxSleep, true
	}
	return time.Duration(n * float64(unit)), true
}

func exitCode(args []string) (int, bool) {
	if len(args) == 0 {
		return 0, true
	}
	n, err := strconv.Atoi(args[0])
	return n, err == nil && n >= 0 && n <= 255
}
