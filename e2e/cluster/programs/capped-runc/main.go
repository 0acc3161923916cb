// An OCI runtime for machines whose own bounding set lacks a capability (a container, a sandbox): `docker run
// --privileged` asks for every capability that the kernel knows, and runc then fails with "unable to apply caps:
// operation not permitted". This one asks only for what it may have itself, then becomes the real runc.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Linux capabilities in the order of their bits (linux/capability.h).
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// bounding is the set of capabilities that this process could ever have.
func bounding() (map[string]bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		hex, found := strings.CutPrefix(line, "CapBnd:")
		if !found {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return nil, err
		}
		set := map[string]bool{}
		for bit, name := range capabilities {
			if bits&(1<<bit) != 0 {
				set["CAP_"+name] = true
			}
		}
		return set, nil
	}
	return nil, fmt.Errorf("/proc/self/status has no CapBnd")
}

// cap rewrites a bundle's config.json, or (isProcess) the process document of `runc exec`.
func cap(file string, isProcess bool) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	var document map[string]any
	if err := decoder.Decode(&document); err != nil {
		return err
	}
	process := document
	if !isProcess {
		process, _ = document["process"].(map[string]any)
	}
	allowed, err := bounding()
	if err != nil {
		return err
	}
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		kept := []any{}
		asked, _ := set.([]any)
		for _, capability := range asked {
			if word, _ := capability.(string); allowed[word] {
				kept = append(kept, word)
			}
		}
		sets[name] = kept
	}
	if raw, err = json.Marshal(document); err != nil {
		return err
	}
	return os.WriteFile(file, raw, 0o600)
}

func run() error {
	command := ""
	for i, argument := range os.Args[1:] {
		value := ""
		if i+2 < len(os.Args) {
			value = os.Args[i+2]
		}
		var err error
		switch {
		case command == "" && (argument == "create" || argument == "run" || argument == "restore" || argument == "exec"):
			command = argument
		case command == "exec" && (argument == "--process" || argument == "-p"):
			err = cap(value, true)
		case command != "" && command != "exec" && (argument == "--bundle" || argument == "-b"):
			err = cap(filepath.Join(value, "config.json"), false)
		}
		if err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ())
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "capped-runc:", err)
		os.Exit(1)
	}
}
