// What the list does with modules whose licence is missing, unknown or not allowed.

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

// mpl is Exhibit A of the MPL 2.0, by which a file says that it is under it.
const mpl = `This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0. If a copy of the MPL was not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.
`

func TestLicences(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // in the list
		err   string
	}{
		{name: "allowed", files: map[string]string{"LICENSE": mit}, want: "example.com/m v1.0.0 MIT\n"},
		{name: "another name", files: map[string]string{"COPYING.txt": mit}, want: " MIT\n"},
		{name: "passed on", files: map[string]string{"LICENSE": mit, "NOTICE": "Thanks to all."}, want: "NOTICE of example.com/m ----\n\nThanks to all.\n"},
		{name: "of documentation", files: map[string]string{"LICENSE": mit, "LICENSE.docs": gpl}, want: " MIT\n"},
		{name: "whose source is asked for", files: map[string]string{"LICENSE": mpl}, want: " MPL-2.0, not modified; its source: https://example.com/m\n"},
		{name: "none", files: map[string]string{"README": mit}, err: "example.com/m v1.0.0: no licence"},
		{name: "unknown", files: map[string]string{"LICENSE": "All rights reserved."}, err: "0% of the text"},
		{name: "not allowed", files: map[string]string{"LICENSE": gpl}, err: "GPL-3.0-or-later cannot be shipped"},
		{name: "not allowed, of a package", files: map[string]string{"LICENSE": mit, "p/COPYING": gpl}, err: "GPL-3.0-or-later cannot be shipped"},
		{name: "not allowed, of a package that is not linked", files: map[string]string{"LICENSE": mit, "q/COPYING": gpl}, want: " MIT\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, sub := range []string{"p", "q"} {
				if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			all := modules([]byte(strings.Join([]string{"example.com/m", "v1.0.0", dir, filepath.Join(dir, "p")}, "\t") + "\n"))
			if len(all) != 1 {
				t.Fatalf("%d modules", len(all))
			}
			var out strings.Builder
			err := write(&out, all)
			switch {
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("%v, want %s", err, tt.err)
			case tt.err == "" && !strings.Contains(out.String(), tt.want):
				t.Errorf("%s\nlacks %q", &out, tt.want)
			}
		})
	}
	if err := write(io.Discard, nil); err != nil {
		t.Error(err)
	}
}
